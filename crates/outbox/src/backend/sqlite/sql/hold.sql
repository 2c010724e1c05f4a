UPDATE {prefix}processors SET lease_until = {now} + lease_millis, renewals = renewals + 1
WHERE partition_id = ?1 AND epoch = ?2 AND holder IS NOT NULL
