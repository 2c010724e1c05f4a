/* {prefix}worker */
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$')) AS held
STRAIGHT_JOIN {prefix}processors c FORCE INDEX (PRIMARY) ON c.partition_id = held.partition_id
SET c.lease_until = {now} + c.lease_millis, c.renewals = c.renewals + 1
