UPDATE {prefix}processors c SET holder = NULL, lease_until = 0
FROM UNNEST($1::bigint[], $2::bigint[]) AS lease (partition_id, epoch)
WHERE c.partition_id = lease.partition_id AND c.epoch = lease.epoch
