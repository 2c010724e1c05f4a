SELECT d.*, p.queue, p.`partition`
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS claimed
STRAIGHT_JOIN {prefix}dead_letters d ON d.id = claimed.id
JOIN {prefix}partitions p ON p.partition_id = d.partition_id
ORDER BY d.id
