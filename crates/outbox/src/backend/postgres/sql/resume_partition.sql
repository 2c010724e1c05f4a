DELETE FROM {prefix}paused WHERE partition_id = $1
