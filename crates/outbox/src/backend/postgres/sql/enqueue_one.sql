INSERT INTO {prefix}messages (partition_id, created_at, payload_type, key, headers, payload)
VALUES ($1, {now}, $2, $3, $4, $5)
RETURNING id
