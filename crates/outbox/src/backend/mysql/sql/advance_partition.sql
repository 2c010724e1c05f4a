/* {prefix}worker */
UPDATE {prefix}partitions SET last_seq = ? WHERE partition_id = ?
