SELECT d.id, d.partition_id, d.seq, d.message_id, d.created_at, d.failed_at, d.payload_type, d.key,
       d.headers, CASE WHEN $8 THEN d.payload ELSE '' END AS payload, d.attempts, d.last_error,
       d.status, d.claim_token, d.deadline, d.completed_at, d.requeued_as, p.queue, p.partition
FROM {prefix}dead_letters d
JOIN {prefix}partitions p ON p.partition_id = d.partition_id
WHERE ($1::text IS NULL OR p.queue = $1)
  AND ($2::bigint IS NULL OR p.partition = $2)
  AND ($3::text IS NULL OR d.payload_type = $3)
  AND d.id BETWEEN $4 AND $5
  AND ($6::text IS NULL OR d.status = $6)
ORDER BY d.id DESC LIMIT $7
