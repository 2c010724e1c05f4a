WITH free AS (
    SELECT d.id
    FROM {prefix}dead_letters d
    JOIN {prefix}partitions p ON p.partition_id = d.partition_id
    WHERE ($1::text IS NULL OR p.queue = $1)
      AND ($2::bigint IS NULL OR p.partition = $2)
      AND ($3::text IS NULL OR d.payload_type = $3)
      AND d.id BETWEEN $4 AND $5
      AND (d.status = 'pending' OR (d.status = 'reprocessing' AND d.deadline <= {now}))
    ORDER BY d.id LIMIT $6
    FOR NO KEY UPDATE OF d SKIP LOCKED
), claimed AS (
    UPDATE {prefix}dead_letters d
    SET status = 'reprocessing', claim_token = $7, deadline = {now} + $8
    FROM free WHERE d.id = free.id
    RETURNING d.*
)
SELECT claimed.*, p.queue, p.partition
FROM claimed JOIN {prefix}partitions p ON p.partition_id = claimed.partition_id
ORDER BY claimed.id
