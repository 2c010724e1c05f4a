UPDATE JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$[0]', epoch BIGINT PATH '$[1]'))
    AS lease
STRAIGHT_JOIN {prefix}processors c FORCE INDEX (PRIMARY) ON c.partition_id = lease.partition_id
SET c.lease_until = {now} + ?, c.renewals = c.renewals + 1
WHERE c.epoch = lease.epoch AND c.holder IS NOT NULL
