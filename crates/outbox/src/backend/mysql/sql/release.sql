UPDATE JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$[0]', epoch BIGINT PATH '$[1]'))
    AS lease
STRAIGHT_JOIN {prefix}processors c FORCE INDEX (PRIMARY) ON c.partition_id = lease.partition_id
SET c.holder = NULL, c.lease_until = 0
WHERE c.epoch = lease.epoch
