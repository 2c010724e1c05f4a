/* {prefix}worker */
SELECT * FROM (
    SELECT p.partition_id,
           EXISTS (SELECT 1 FROM {prefix}incoming i
                   WHERE i.partition_id = p.partition_id) AS unsequenced,
           p.last_seq > c.processed_seq AND NOT p.paused AND NOT q.paused AS pending,
           p.last_seq, c.holder, c.epoch, c.renewals, c.lease_millis, c.lease_until <= {now} AS expired
    FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$')) AS asked
    STRAIGHT_JOIN {prefix}partitions p ON p.partition_id = asked.partition_id
    STRAIGHT_JOIN {prefix}processors c ON c.partition_id = p.partition_id
    STRAIGHT_JOIN {prefix}queues q ON q.queue = p.queue
) AS surveyed
WHERE unsequenced OR pending
