/* {prefix}worker */
-- A lease of ours that we do not know of is one whose reply was lost: it abandoned nothing itself.
SELECT epoch, CASE WHEN holder = ? THEN abandoned ELSE holder IS NOT NULL END AS abandoned
FROM {prefix}processors
WHERE partition_id = ?
  AND (holder IS NULL OR holder = ? OR lease_until <= {now} OR (epoch = ? AND renewals = ?)
       OR ?)
FOR UPDATE SKIP LOCKED
