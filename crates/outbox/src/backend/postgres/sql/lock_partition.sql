-- A statement of its own: the one that looks must take its snapshot when the lock is already held.
-- `foreign_ids` is true when the transaction ids stored here are not those of this cluster, or seem
-- so: this statement's snapshot may be older than the row it got the lock of.
SELECT cluster IS DISTINCT FROM control.system_identifier AND cluster IS NOT NULL
       OR pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(seen) AS foreign_ids
FROM {prefix}partitions CROSS JOIN pg_control_system() AS control
WHERE partition_id = $1
FOR NO KEY UPDATE OF {prefix}partitions SKIP LOCKED
