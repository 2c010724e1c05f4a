SELECT p.partition, m.id, m.created_at, m.payload_type, m.key, m.headers, m.payload
FROM {prefix}messages m
JOIN {prefix}partitions p ON p.partition_id = m.partition_id
JOIN {prefix}processors c ON c.partition_id = m.partition_id
WHERE p.queue = $1
  AND NOT EXISTS (SELECT 1 FROM {prefix}runs r
                  WHERE r.partition_id = m.partition_id AND r.first_seq <= c.processed_seq
                    AND m.id = ANY (r.ids[1 : c.processed_seq - r.first_seq + 1]))
ORDER BY m.id LIMIT $2
