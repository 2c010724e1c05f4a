/* {prefix}worker */
-- Locked or not.
SELECT c.partition_id
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$[0]', epoch BIGINT PATH '$[1]')) AS lease
STRAIGHT_JOIN {prefix}processors c FORCE INDEX (PRIMARY) ON c.partition_id = lease.partition_id
WHERE c.epoch = lease.epoch AND c.holder IS NOT NULL
