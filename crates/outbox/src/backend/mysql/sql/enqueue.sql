-- The row is repeated for every message. Never INSERT … SELECT: that takes the AUTO-INC lock, which
-- other producers would wait for, and its ids may have holes.
INSERT INTO {prefix}messages (partition_id, created_at, payload_type, `key`, headers, payload)
VALUES (?, {now}, ?, ?, ?, ?)
