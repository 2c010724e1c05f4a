UPDATE {prefix}processors
SET processed_seq = ?4, processed_id = MAX(processed_id, COALESCE(?5, 0)),
    attempts = ?6, last_error = ?7,
    lease_until = {now} + ?3, renewals = renewals + 1
WHERE partition_id = ?1 AND epoch = ?2 AND holder IS NOT NULL AND processed_seq <= ?4
