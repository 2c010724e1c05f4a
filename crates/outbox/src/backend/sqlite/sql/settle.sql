UPDATE {prefix}processors
SET processed_seq = ?3, processed_id = MAX(processed_id, COALESCE(?4, 0)),
    attempts = ?5, last_error = ?6,
    lease_until = {now} + lease_millis, renewals = renewals + 1
WHERE partition_id = ?1 AND epoch = ?2 AND holder IS NOT NULL AND processed_seq <= ?3
