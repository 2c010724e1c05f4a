UPDATE {prefix}dead_letters d
SET status = $3,
    attempts = CASE WHEN $4::text IS NULL THEN d.attempts ELSE d.attempts + 1 END,
    last_error = COALESCE($4, d.last_error),
    completed_at = CASE WHEN $3 = 'pending' THEN NULL ELSE {now} END,
    claim_token = NULL, deadline = NULL
FROM UNNEST($1::bigint[], $2::text[]) AS claim (id, token)
WHERE d.id = claim.id
  AND ((d.status = 'pending' OR d.status = 'reprocessing' AND d.deadline <= {now})
       AND claim.token IS NULL AND $3 = 'discarded'
       OR d.status = 'reprocessing' AND d.claim_token = claim.token)
