/* {prefix}worker */
SELECT p.queue, p.`partition`, p.partition_id, p.last_seq, c.processed_seq, c.attempts, c.last_error,
       p.paused OR q.paused AS paused, c.holder, c.epoch, c.lease_until,
       EXISTS (SELECT 1 FROM {prefix}incoming i
               WHERE i.partition_id = p.partition_id) AS unsequenced,
       (SELECT m.created_at FROM {prefix}messages m WHERE m.id = (
            SELECT CAST(SUBSTR(r.ids, 1 + (c.processed_seq + 1 - r.first_seq) * r.width, r.width - 1)
                        AS SIGNED)
            FROM {prefix}runs r
            WHERE r.partition_id = p.partition_id
              AND r.first_seq <= c.processed_seq + 1 AND r.last_seq > c.processed_seq
            ORDER BY r.first_seq DESC LIMIT 1
        )) AS head_created_at,
       (SELECT COUNT(*) FROM {prefix}dead_letters d
        WHERE d.partition_id = p.partition_id AND d.status = 'pending') AS dead_letters
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$')) AS asked
STRAIGHT_JOIN {prefix}partitions p ON p.partition_id = asked.partition_id
STRAIGHT_JOIN {prefix}processors c ON c.partition_id = p.partition_id
STRAIGHT_JOIN {prefix}queues q ON q.queue = p.queue
ORDER BY p.queue, p.`partition`
