INSERT INTO {prefix}partitions (queue, partition) SELECT $1, GENERATE_SERIES(0, $2 - 1)
ON CONFLICT (queue, partition) DO NOTHING
