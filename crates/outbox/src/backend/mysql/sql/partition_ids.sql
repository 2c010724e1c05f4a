SELECT p.partition_id FROM {prefix}partitions p
JOIN {prefix}processors c ON c.partition_id = p.partition_id
JOIN {prefix}vacuum v ON v.partition_id = p.partition_id
WHERE p.queue = ? ORDER BY p.`partition`
