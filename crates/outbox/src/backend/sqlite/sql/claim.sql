-- A lease of ours that we do not know of is one whose reply was lost: it abandoned nothing itself.
UPDATE {prefix}processors
SET epoch = epoch + 1, renewals = 0,
    abandoned = CASE WHEN holder = ?2 THEN abandoned ELSE holder IS NOT NULL END,
    holder = ?2, lease_until = {now} + ?3, lease_millis = ?3
WHERE partition_id = ?1
  AND (holder IS NULL OR holder = ?2 OR lease_until <= {now} OR (epoch = ?4 AND renewals = ?5) OR ?6)
RETURNING epoch, abandoned
