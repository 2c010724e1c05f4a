UPDATE {prefix}partitions SET paused = $2 WHERE partition_id = $1
