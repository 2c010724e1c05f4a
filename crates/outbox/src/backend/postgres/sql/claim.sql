WITH free AS (
    SELECT partition_id FROM {prefix}processors
    WHERE partition_id = $1
      AND (holder IS NULL OR lease_until <= {now} OR (epoch = $4 AND renewals = $5))
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {prefix}processors c
SET epoch = c.epoch + 1, renewals = 0, abandoned = c.holder IS NOT NULL,
    holder = $2, lease_until = {now} + $3
FROM free WHERE c.partition_id = free.partition_id
RETURNING c.epoch, c.abandoned
