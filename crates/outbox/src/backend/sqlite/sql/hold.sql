UPDATE {prefix}processors SET lease_until = {now} + ?3, renewals = renewals + 1
WHERE partition_id = ?1 AND epoch = ?2 AND holder IS NOT NULL
