UPDATE {prefix}processors
SET processed_seq = ?, attempts = ?, last_error = ?,
    lease_until = {now} + ?, renewals = renewals + 1
WHERE partition_id = ? AND epoch = ? AND holder IS NOT NULL AND processed_seq <= ?
