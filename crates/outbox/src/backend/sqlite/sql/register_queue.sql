INSERT INTO {prefix}queues (queue, partitions) VALUES (?1, ?2) ON CONFLICT (queue) DO NOTHING
