-- Assignments see the ones before them: `abandoned` comes before `holder`.
UPDATE {prefix}processors
SET epoch = epoch + 1, renewals = 0, abandoned = holder IS NOT NULL, holder = ?,
    lease_until = {now} + ?
WHERE partition_id = ?
