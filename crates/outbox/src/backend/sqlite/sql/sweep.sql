DELETE FROM {prefix}messages WHERE id IN (
    SELECT m.id FROM {prefix}processors c
    JOIN {prefix}messages m ON m.partition_id = c.partition_id
    WHERE c.partition_id = ?1 AND m.id <= c.processed_id
    ORDER BY m.id LIMIT ?2
)
