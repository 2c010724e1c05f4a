SELECT processed_seq FROM {prefix}processors WHERE partition_id = ?
