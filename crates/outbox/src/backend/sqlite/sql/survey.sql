SELECT * FROM (
    SELECT p.partition_id,
           EXISTS (SELECT 1 FROM {prefix}messages m
                   WHERE m.partition_id = p.partition_id AND m.id > p.last_id) AS unsequenced,
           p.last_seq > c.processed_seq AND NOT p.paused AND NOT q.paused AS pending,
           p.last_seq, c.holder, c.epoch, c.renewals, c.lease_millis, c.lease_until <= {now} AS expired
    FROM {prefix}partitions p
    JOIN {prefix}processors c ON c.partition_id = p.partition_id
    JOIN {prefix}queues q ON q.queue = p.queue
    WHERE p.partition_id IN (SELECT value FROM json_each(?1))
)
WHERE unsequenced OR pending
