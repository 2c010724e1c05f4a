/* {prefix}worker */
UPDATE {prefix}vacuum SET vacuumed_seq = ? WHERE partition_id = ?
