-- Those that can be claimed, without waiting for others who claim.
SELECT d.id
FROM {prefix}dead_letters d
JOIN {prefix}partitions p ON p.partition_id = d.partition_id
WHERE (? IS NULL OR p.queue = ?)
  AND (? IS NULL OR p.`partition` = ?)
  AND (? IS NULL OR d.payload_type = ?)
  AND (d.status = 'pending' OR (d.status = 'reprocessing' AND d.deadline <= {now}))
ORDER BY d.id LIMIT ?
FOR UPDATE SKIP LOCKED
