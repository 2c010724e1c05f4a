/* {prefix}worker */
-- A second burial of the same message changes nothing.
INSERT INTO {prefix}dead_letters
    (partition_id, seq, message_id, created_at, failed_at, payload_type, `key`, headers, payload,
     attempts, last_error)
SELECT m.partition_id, ?, m.id, m.created_at, {now}, m.payload_type, m.`key`, m.headers, m.payload,
       ?, ?
FROM {prefix}messages m WHERE m.id = ?
ON DUPLICATE KEY UPDATE seq = {prefix}dead_letters.seq
