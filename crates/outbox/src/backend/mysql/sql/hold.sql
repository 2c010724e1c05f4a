/* {prefix}worker */
UPDATE {prefix}processors SET lease_until = {now} + lease_millis, renewals = renewals + 1
WHERE partition_id = ? AND epoch = ? AND holder IS NOT NULL
