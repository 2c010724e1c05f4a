-- RETURNING cannot name what comes from FROM, so the count passes through the row.
UPDATE {prefix}partitions
SET last_seq = last_seq + fresh.count, last_id = fresh.last_id, last_count = fresh.count
FROM (
    SELECT COUNT(*) AS count, MAX(id) AS last_id
    FROM (
        SELECT m.id FROM {prefix}messages m
        WHERE m.partition_id = ?1
          AND m.id > (SELECT last_id FROM {prefix}partitions WHERE partition_id = ?1)
        ORDER BY m.id LIMIT ?2
    )
) AS fresh
WHERE partition_id = ?1 AND fresh.count > 0
RETURNING last_count
