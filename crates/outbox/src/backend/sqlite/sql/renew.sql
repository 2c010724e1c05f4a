UPDATE {prefix}processors SET lease_until = {now} + lease_millis, renewals = renewals + 1
WHERE holder IS NOT NULL AND (partition_id, epoch) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1))
RETURNING partition_id
