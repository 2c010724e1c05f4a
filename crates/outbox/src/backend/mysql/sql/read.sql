-- Bound: lease (partition, epoch), then messages, partition, messages, bytes,
-- whether paused or not. The run that has the
-- head is the last one that begins at or before it; of every run only the wanted slice is unpacked.
-- Nothing here is sorted with its payload: whoever reads puts the rows in order.
SELECT head.processed_seq, head.attempts, head.paused, CAST(CONNECTION_ID() AS SIGNED) AS session,
       ahead.seq,
       m.id, m.created_at, m.payload_type, m.`key`, m.headers, m.payload
FROM (
    SELECT c.processed_seq, c.attempts, p.paused OR q.paused AS paused
    FROM {prefix}processors c
    JOIN {prefix}partitions p ON p.partition_id = c.partition_id
    JOIN {prefix}queues q ON q.queue = p.queue
    WHERE c.partition_id = ? AND c.epoch = ? AND c.holder IS NOT NULL
) AS head
LEFT JOIN (
    SELECT sized.seq, sized.id, SUM(sized.size) OVER (ORDER BY sized.seq) - sized.size AS bytes_before
    FROM (
        SELECT CAST(slice.first_seq + item.place - 1 AS SIGNED) AS seq, item.id,
               COALESCE(body.size, 0) AS size
        FROM (
            SELECT GREATEST(r.first_seq, c.processed_seq + 1) AS first_seq,
                   SUBSTR(r.ids, 1 + GREATEST(c.processed_seq + 1 - r.first_seq, 0) * r.width,
                          (LEAST(r.last_seq, c.processed_seq + ?)
                           - GREATEST(r.first_seq, c.processed_seq + 1) + 1) * r.width - 1) AS ids
            FROM {prefix}processors c
            STRAIGHT_JOIN {prefix}runs r FORCE INDEX (PRIMARY) ON r.partition_id = c.partition_id
            WHERE c.partition_id = ? AND r.last_seq > c.processed_seq
              AND r.first_seq <= c.processed_seq + ?
              AND r.first_seq >= (
                  SELECT MAX(f.first_seq) FROM {prefix}runs f
                  WHERE f.partition_id = c.partition_id AND f.first_seq <= c.processed_seq + 1
              )
        ) AS slice
        STRAIGHT_JOIN JSON_TABLE(CONCAT('[', slice.ids, ']'), '$[*]'
            COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS item
        LEFT JOIN {prefix}messages body ON body.id = item.id
    ) AS sized
) AS ahead ON ahead.bytes_before < ? AND (NOT head.paused OR ?)
LEFT JOIN {prefix}messages m ON m.id = ahead.id
