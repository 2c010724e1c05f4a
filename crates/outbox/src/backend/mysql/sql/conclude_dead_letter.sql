-- The assignments are made from left to right: whatever reads a column comes before what sets it.
UPDATE {prefix}dead_letters
SET attempts = CASE WHEN ? IS NULL THEN attempts ELSE attempts + 1 END,
    last_error = COALESCE(?, last_error),
    completed_at = CASE WHEN ? = 'pending' THEN NULL ELSE {now} END,
    status = ?, claim_token = NULL, deadline = NULL
WHERE id = ?
  AND ((status = 'pending' OR status = 'reprocessing' AND deadline <= {now}) AND ? IS NULL AND ? = 'discarded'
       OR status = 'reprocessing' AND claim_token = ?)
