/* {prefix}worker */
UPDATE {prefix}processors
SET processed_seq = ?, attempts = ?, last_error = ?,
    lease_until = {now} + lease_millis, renewals = renewals + 1
WHERE partition_id = ? AND epoch = ? AND holder IS NOT NULL AND processed_seq <= ?
