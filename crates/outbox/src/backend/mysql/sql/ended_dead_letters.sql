SELECT d.id
FROM {prefix}dead_letters d
JOIN {prefix}partitions p ON p.partition_id = d.partition_id
WHERE (? IS NULL OR p.queue = ?)
  AND (? IS NULL OR p.`partition` = ?)
  AND (? IS NULL OR d.payload_type = ?)
  AND d.id BETWEEN ? AND ?
  AND (? IS NULL OR d.status = ?)
  AND d.status IN ('resolved', 'discarded')
ORDER BY d.id LIMIT ?
