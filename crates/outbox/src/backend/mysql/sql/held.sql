/* {prefix}worker */
-- Whoever has a row locked is handling under it, and renews it when it settles. DISTINCT keeps the
-- list a table of its own: MySQL cannot lock a join with a table function.
SELECT c.partition_id
FROM (
    SELECT DISTINCT wanted.partition_id, wanted.epoch
    FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$[0]', epoch BIGINT PATH '$[1]'))
        AS wanted
) AS lease
STRAIGHT_JOIN {prefix}processors c FORCE INDEX (PRIMARY) ON c.partition_id = lease.partition_id
WHERE c.epoch = lease.epoch AND c.holder IS NOT NULL
FOR UPDATE SKIP LOCKED
