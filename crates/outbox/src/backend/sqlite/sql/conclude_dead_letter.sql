UPDATE {prefix}dead_letters
SET status = ?3,
    attempts = CASE WHEN ?4 IS NULL THEN attempts ELSE attempts + 1 END,
    last_error = COALESCE(?4, last_error),
    completed_at = CASE WHEN ?3 = 'pending' THEN NULL ELSE {now} END,
    claim_token = NULL, deadline = NULL
WHERE id = ?1
  AND ((status = 'pending' OR status = 'reprocessing' AND deadline <= {now}) AND ?2 IS NULL AND ?3 = 'discarded'
       OR status = 'reprocessing' AND claim_token = ?2)
