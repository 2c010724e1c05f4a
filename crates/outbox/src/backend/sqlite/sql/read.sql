WITH head AS (
    SELECT c.partition_id, c.processed_seq, c.processed_id, c.attempts, p.last_id, p.last_seq,
           p.paused OR q.paused AS paused
    FROM {prefix}processors c
    JOIN {prefix}partitions p ON p.partition_id = c.partition_id
    JOIN {prefix}queues q ON q.queue = p.queue
    WHERE c.partition_id = ?1
), next AS (
    SELECT id, SUM(size) OVER (ORDER BY id) - size AS bytes_before
    FROM (
        SELECT m.id, LENGTH(m.payload) AS size
        FROM head JOIN {prefix}messages m ON m.partition_id = head.partition_id
        WHERE m.id > head.processed_id AND m.id <= head.last_id AND (NOT head.paused OR ?4)
        ORDER BY m.id LIMIT ?2
    )
)
SELECT head.processed_seq, head.attempts, head.paused, head.last_seq,
       m.id, m.created_at, m.payload_type, m.key, m.headers, m.payload
FROM head
LEFT JOIN next ON next.bytes_before < ?3
LEFT JOIN {prefix}messages m ON m.id = next.id
ORDER BY m.id
