-- With the partition's lock held: this snapshot is newer than the one that was stored.
SELECT cluster IS DISTINCT FROM control.system_identifier AND cluster IS NOT NULL
       OR pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(seen)
FROM {prefix}partitions CROSS JOIN pg_control_system() AS control
WHERE partition_id = $1
