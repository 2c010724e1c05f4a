UPDATE {prefix}dead_letters
SET status = 'reprocessing', claim_token = ?7, deadline = {now} + ?8
WHERE id IN (
    SELECT d.id
    FROM {prefix}dead_letters d
    JOIN {prefix}partitions p ON p.partition_id = d.partition_id
    WHERE (?1 IS NULL OR p.queue = ?1)
      AND (?2 IS NULL OR p.partition = ?2)
      AND (?3 IS NULL OR d.payload_type = ?3)
      AND d.id BETWEEN ?4 AND ?5
      AND (d.status = 'pending' OR (d.status = 'reprocessing' AND d.deadline <= {now}))
    ORDER BY d.id LIMIT ?6
)
