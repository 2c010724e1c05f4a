/* {prefix}worker */
-- A lease of ours that we do not know of is one whose reply was lost: it abandoned nothing itself.
WITH free AS (
    SELECT partition_id FROM {prefix}processors
    WHERE partition_id = $1
      AND (holder IS NULL OR holder = $2 OR lease_until <= {now} OR (epoch = $4 AND renewals = $5) OR $6)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {prefix}processors c
SET epoch = c.epoch + 1, renewals = 0,
    abandoned = CASE WHEN c.holder = $2 THEN c.abandoned ELSE c.holder IS NOT NULL END,
    holder = $2, lease_until = {now} + $3, lease_millis = $3
FROM free WHERE c.partition_id = free.partition_id
RETURNING c.epoch, c.abandoned
