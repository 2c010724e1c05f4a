UPDATE {prefix}processors SET holder = NULL, lease_until = 0
WHERE (partition_id, epoch) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1))
