/* {prefix}worker */
UPDATE {prefix}processors SET holder = NULL, lease_until = 0
WHERE partition_id = $1 AND epoch = $2
