INSERT INTO {prefix}messages (partition_id, created_at, payload_type, key, headers, payload)
SELECT partition_id, {now}, payload_type, key, headers, payload
FROM UNNEST($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[])
    AS new (partition_id, payload_type, key, headers, payload)
RETURNING id
