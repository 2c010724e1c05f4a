/* {prefix}worker */
SELECT vacuumed_seq FROM {prefix}vacuum WHERE partition_id = ? FOR UPDATE SKIP LOCKED
