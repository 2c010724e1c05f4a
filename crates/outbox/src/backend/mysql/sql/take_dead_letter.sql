-- Not as a join: that would lock the partition's row as well, and skip what a sequencer has.
SELECT d.*,
       (SELECT p.queue FROM {prefix}partitions p WHERE p.partition_id = d.partition_id) AS queue,
       (SELECT p.`partition` FROM {prefix}partitions p
        WHERE p.partition_id = d.partition_id) AS `partition`
FROM {prefix}dead_letters d
WHERE d.id = ?
  AND (d.status = 'pending' OR (d.status = 'reprocessing' AND d.deadline <= {now}))
FOR UPDATE SKIP LOCKED
