-- Those that can be claimed, without waiting for others who claim. Not as a join: that would lock the
-- partitions' rows as well, and skip what a sequencer has.
SELECT d.id
FROM {prefix}dead_letters d
WHERE d.partition_id IN (
      SELECT p.partition_id FROM {prefix}partitions p
      WHERE (? IS NULL OR p.queue = ?) AND (? IS NULL OR p.`partition` = ?)
  )
  AND (? IS NULL OR d.payload_type = ?)
  AND d.id BETWEEN ? AND ?
  AND (d.status = 'pending' OR (d.status = 'reprocessing' AND d.deadline <= {now}))
ORDER BY d.id LIMIT ?
FOR UPDATE SKIP LOCKED
