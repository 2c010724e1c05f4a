UPDATE {prefix}processors SET paused = ? WHERE partition_id = ?
