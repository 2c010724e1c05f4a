SELECT d.*, p.queue, p.partition
FROM {prefix}dead_letters d
JOIN {prefix}partitions p ON p.partition_id = d.partition_id
WHERE d.claim_token = ?1
ORDER BY d.id
