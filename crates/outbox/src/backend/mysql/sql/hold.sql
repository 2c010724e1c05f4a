UPDATE {prefix}processors SET lease_until = {now} + ?, renewals = renewals + 1
WHERE partition_id = ? AND epoch = ? AND holder IS NOT NULL
