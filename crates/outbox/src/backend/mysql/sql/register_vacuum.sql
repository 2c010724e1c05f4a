INSERT INTO {prefix}vacuum (partition_id)
SELECT p.partition_id FROM {prefix}partitions p WHERE p.queue = ?
ON DUPLICATE KEY UPDATE partition_id = {prefix}vacuum.partition_id
