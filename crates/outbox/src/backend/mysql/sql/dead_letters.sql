SELECT d.id, d.partition_id, d.seq, d.message_id, d.created_at, d.failed_at, d.payload_type, d.`key`,
       d.headers, CASE WHEN ? THEN d.payload ELSE '' END AS payload, d.attempts, d.last_error,
       d.status, d.claim_token, d.deadline, d.completed_at, d.requeued_as, p.queue, p.`partition`
FROM {prefix}dead_letters d
JOIN {prefix}partitions p ON p.partition_id = d.partition_id
WHERE (? IS NULL OR p.queue = ?)
  AND (? IS NULL OR p.`partition` = ?)
  AND (? IS NULL OR d.payload_type = ?)
  AND d.id BETWEEN ? AND ?
  AND (? IS NULL OR d.status = ?)
ORDER BY d.id DESC LIMIT ?
