SELECT epoch, holder IS NOT NULL AS abandoned FROM {prefix}processors
WHERE partition_id = ? AND (holder IS NULL OR lease_until <= {now} OR (epoch = ? AND renewals = ?))
FOR UPDATE SKIP LOCKED
