UPDATE {prefix}partitions SET paused = ? WHERE partition_id = ?
