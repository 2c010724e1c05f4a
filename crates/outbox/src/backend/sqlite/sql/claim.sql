UPDATE {prefix}processors
SET epoch = epoch + 1, renewals = 0, abandoned = holder IS NOT NULL,
    holder = ?2, lease_until = {now} + ?3
WHERE partition_id = ?1
  AND (holder IS NULL OR lease_until <= {now} OR (epoch = ?4 AND renewals = ?5))
RETURNING epoch, abandoned
