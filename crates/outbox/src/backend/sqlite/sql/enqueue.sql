-- One statement for any number of messages: their fields as JSON, their payloads end to end. A piece
-- of nothing is NULL to SQLite, also when nothing is what all payloads together have.
INSERT INTO {prefix}messages (partition_id, created_at, payload_type, key, headers, payload)
SELECT json_extract(value, '$.partition_id'), {now}, json_extract(value, '$.type'),
       json_extract(value, '$.key'), json_extract(value, '$.headers'),
       COALESCE(substr(?2, json_extract(value, '$.offset') + 1, json_extract(value, '$.length')), x'')
FROM json_each(?1)
RETURNING id
