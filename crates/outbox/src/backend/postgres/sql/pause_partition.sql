UPDATE {prefix}processors SET paused = $2 WHERE partition_id = $1
