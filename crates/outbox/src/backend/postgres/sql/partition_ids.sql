SELECT p.partition_id FROM {prefix}partitions p
JOIN {prefix}processors c ON c.partition_id = p.partition_id
WHERE p.queue = $1 ORDER BY p.partition
