-- The number and the id of the last message that is settled move together or not at all.
UPDATE {prefix}processors
SET processed_seq = CASE WHEN ?4 IS NULL THEN processed_seq ELSE ?3 END,
    processed_id = MAX(processed_id, COALESCE(?4, 0)),
    attempts = CASE WHEN ?4 IS NULL AND processed_seq < ?3 THEN attempts ELSE ?5 END,
    last_error = CASE WHEN ?4 IS NULL AND processed_seq < ?3 THEN last_error ELSE ?6 END,
    lease_until = {now} + lease_millis, renewals = renewals + 1
WHERE partition_id = ?1 AND epoch = ?2 AND holder IS NOT NULL AND processed_seq <= ?3
