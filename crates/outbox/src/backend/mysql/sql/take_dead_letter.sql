SELECT d.*, p.queue, p.`partition`
FROM {prefix}dead_letters d
JOIN {prefix}partitions p ON p.partition_id = d.partition_id
WHERE d.id = ?
  AND (d.status = 'pending' OR (d.status = 'reprocessing' AND d.deadline <= {now}))
FOR UPDATE SKIP LOCKED
