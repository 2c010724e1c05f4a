SELECT p.partition, m.id, m.created_at, m.payload_type, m.key, m.headers, m.payload
FROM {prefix}messages m
JOIN {prefix}partitions p ON p.partition_id = m.partition_id
JOIN {prefix}processors c ON c.partition_id = m.partition_id
WHERE p.queue = ?1 AND m.id > c.processed_id
ORDER BY m.id LIMIT ?2
