-- The row is repeated for every message.
INSERT INTO {prefix}messages (partition_id, created_at, payload_type, key, headers, payload)
VALUES (?, {now}, ?, ?, ?, ?)
