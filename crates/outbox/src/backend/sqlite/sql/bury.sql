-- A second burial of the same message changes nothing.
INSERT INTO {prefix}dead_letters
    (partition_id, seq, message_id, created_at, failed_at, payload_type, key, headers, payload,
     attempts, last_error)
SELECT m.partition_id, ?2, m.id, m.created_at, {now}, m.payload_type, m.key, m.headers, m.payload,
       ?3, ?4
FROM {prefix}messages m WHERE m.id = ?1
ON CONFLICT (partition_id, seq) DO NOTHING
