-- A statement of its own: the one that looks must take its snapshot when the lock is already held.
SELECT last_seq FROM {prefix}partitions WHERE partition_id = ? FOR UPDATE SKIP LOCKED
