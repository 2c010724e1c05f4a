/* {prefix}worker */
-- Where the partition stands, the run that has the next message, and those after it: of each what is
-- wanted at most. The first is the last one that begins at or before that message; a bound on the range
-- of the others instead would be worked out too late by MariaDB, which would read all runs before.
(
    SELECT c.processed_seq, c.attempts, p.paused OR q.paused AS paused,
           CAST(CONNECTION_ID() AS SIGNED) AS session, NULL AS first_seq, NULL AS ids, NULL AS sizes
    FROM {prefix}processors c
    STRAIGHT_JOIN {prefix}partitions p ON p.partition_id = c.partition_id
    STRAIGHT_JOIN {prefix}queues q ON q.queue = p.queue
    WHERE c.partition_id = ? AND c.epoch = ? AND c.holder IS NOT NULL
) UNION ALL (
    SELECT NULL, NULL, NULL, NULL, c.processed_seq + 1,
           SUBSTR(r.ids, 1 + (c.processed_seq + 1 - r.first_seq) * r.width, ? * r.width),
           SUBSTR(r.sizes, 1 + (c.processed_seq + 1 - r.first_seq) * r.width, ? * r.width)
    FROM {prefix}processors c
    STRAIGHT_JOIN {prefix}runs r FORCE INDEX (PRIMARY) ON r.partition_id = c.partition_id
    WHERE c.partition_id = ? AND r.first_seq <= c.processed_seq + 1
    ORDER BY r.first_seq DESC LIMIT 1
) UNION ALL (
    SELECT NULL, NULL, NULL, NULL, r.first_seq,
           SUBSTR(r.ids, 1, ? * r.width), SUBSTR(r.sizes, 1, ? * r.width)
    FROM {prefix}processors c
    STRAIGHT_JOIN {prefix}runs r FORCE INDEX (PRIMARY) ON r.partition_id = c.partition_id
    WHERE c.partition_id = ? AND r.first_seq > c.processed_seq + 1
      AND r.first_seq <= c.processed_seq + ?
)
