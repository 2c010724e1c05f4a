INSERT INTO {prefix}queues (queue, partitions) VALUES (?, ?)
ON DUPLICATE KEY UPDATE partitions = partitions
