UPDATE {prefix}processors c SET lease_until = {now} + $3, renewals = c.renewals + 1
FROM UNNEST($1::bigint[], $2::bigint[]) AS lease (partition_id, epoch)
WHERE c.partition_id = lease.partition_id AND c.epoch = lease.epoch AND c.holder IS NOT NULL
RETURNING c.partition_id
