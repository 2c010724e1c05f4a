/* {prefix}worker */
-- Assignments see the ones before them.
UPDATE {prefix}processors
SET epoch = epoch + 1, renewals = 0, abandoned = ?, holder = ?,
    lease_millis = ?, lease_until = {now} + lease_millis
WHERE partition_id = ?
