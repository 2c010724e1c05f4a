/* {prefix}worker */
-- Whoever has a row locked is handling under it, and renews it when it settles: it is left out, and answered
-- with the others that are still held.
WITH mine AS (
    SELECT c.partition_id
    FROM UNNEST($1::bigint[], $2::bigint[]) AS lease (partition_id, epoch)
    JOIN {prefix}processors c ON c.partition_id = lease.partition_id
    WHERE c.epoch = lease.epoch AND c.holder IS NOT NULL
    FOR NO KEY UPDATE OF c SKIP LOCKED
), renewed AS (
    UPDATE {prefix}processors c SET lease_until = {now} + c.lease_millis, renewals = c.renewals + 1
    FROM mine WHERE c.partition_id = mine.partition_id
)
SELECT c.partition_id
FROM UNNEST($1::bigint[], $2::bigint[]) AS lease (partition_id, epoch)
JOIN {prefix}processors c ON c.partition_id = lease.partition_id
WHERE c.epoch = lease.epoch AND c.holder IS NOT NULL
