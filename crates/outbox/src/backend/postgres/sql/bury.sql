/* {prefix}worker */
INSERT INTO {prefix}dead_letters
    (partition_id, seq, message_id, created_at, failed_at, payload_type, key, headers, payload,
     attempts, last_error)
SELECT m.partition_id, dead.seq, m.id, m.created_at, {now}, m.payload_type, m.key, m.headers,
       m.payload, dead.attempts, dead.reason
FROM UNNEST($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) AS dead (id, seq, attempts, reason)
JOIN {prefix}messages m ON m.id = dead.id
ON CONFLICT (partition_id, seq) DO NOTHING
