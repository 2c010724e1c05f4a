-- From number ?2 on, or from the head.
WITH head AS (
    SELECT c.processed_seq, c.processed_id, p.last_id,
           MAX(COALESCE(?2, 0) - 1 - c.processed_seq, 0) AS skipped
    FROM {prefix}processors c
    JOIN {prefix}partitions p ON p.partition_id = c.partition_id
    WHERE c.partition_id = ?1
), page AS (
    SELECT id FROM {prefix}messages
    WHERE partition_id = ?1 AND id > (SELECT processed_id FROM head) AND id <= (SELECT last_id FROM head)
    ORDER BY id LIMIT ?3 OFFSET (SELECT skipped FROM head)
)
SELECT head.processed_seq + head.skipped + ROW_NUMBER() OVER (ORDER BY m.id) AS seq,
       m.id, m.created_at, m.payload_type, m.key, m.headers, m.payload
FROM head JOIN page JOIN {prefix}messages m ON m.id = page.id
ORDER BY m.id
