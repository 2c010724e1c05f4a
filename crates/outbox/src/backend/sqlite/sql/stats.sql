SELECT p.queue, p.partition, p.partition_id, p.last_seq, c.processed_seq, c.attempts, c.last_error,
       p.paused OR q.paused AS paused, c.holder, c.epoch, c.lease_until,
       EXISTS (SELECT 1 FROM {prefix}messages m
               WHERE m.partition_id = p.partition_id AND m.id > p.last_id) AS unsequenced,
       (SELECT m.created_at FROM {prefix}messages m
        WHERE m.partition_id = p.partition_id AND m.id > c.processed_id AND m.id <= p.last_id
        ORDER BY m.id LIMIT 1) AS head_created_at,
       (SELECT COUNT(*) FROM {prefix}dead_letters d
        WHERE d.partition_id = p.partition_id AND d.status = 'pending') AS dead_letters
FROM {prefix}partitions p
JOIN {prefix}processors c ON c.partition_id = p.partition_id
JOIN {prefix}queues q ON q.queue = p.queue
WHERE p.partition_id IN (SELECT value FROM json_each(?1))
ORDER BY p.queue, p.partition
