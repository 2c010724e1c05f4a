/* {prefix}worker */
SELECT p.queue, p.partition, p.partition_id, p.last_seq, c.processed_seq, c.attempts, c.last_error,
       q.paused
       OR EXISTS (SELECT 1 FROM {prefix}paused o WHERE o.partition_id = p.partition_id) AS paused,
       c.holder, c.epoch, c.lease_until,
       p.upto IS NOT NULL
       OR EXISTS (SELECT 1 FROM {prefix}messages m
                  WHERE m.partition_id = p.partition_id AND m.xid >= pg_snapshot_xmax(p.seen))
       OR EXISTS (SELECT 1 FROM pg_snapshot_xip(p.seen) AS open (xid)
                  JOIN {prefix}messages m
                    ON m.partition_id = p.partition_id AND m.xid = open.xid
                  WHERE pg_visible_in_snapshot(open.xid, pg_current_snapshot())) AS unsequenced,
       (SELECT m.created_at FROM {prefix}messages m WHERE m.id = head.id) AS head_created_at,
       (SELECT COUNT(*) FROM {prefix}dead_letters d
        WHERE d.partition_id = p.partition_id AND d.status = 'pending') AS dead_letters
FROM {prefix}partitions p
JOIN {prefix}processors c ON c.partition_id = p.partition_id
JOIN {prefix}queues q ON q.queue = p.queue
LEFT JOIN LATERAL (
    SELECT r.ids[c.processed_seq - r.first_seq + 2] AS id FROM {prefix}runs r
    WHERE r.partition_id = p.partition_id AND r.last_seq > c.processed_seq
    ORDER BY r.last_seq LIMIT 1
) AS head ON TRUE
WHERE p.partition_id = ANY ($1)
ORDER BY p.queue, p.partition
