UPDATE {prefix}dead_letters
SET status = 'resolved', requeued_as = ?, completed_at = {now}, claim_token = NULL, deadline = NULL
WHERE id = ?
