UPDATE {prefix}dead_letters
SET status = 'resolved', requeued_as = ?2, completed_at = {now}, claim_token = NULL, deadline = NULL
WHERE id = ?1
