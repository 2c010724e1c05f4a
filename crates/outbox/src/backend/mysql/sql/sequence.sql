-- One snapshot, no locks: what had committed when this statement began, and nothing that commits
-- while it runs. A locking read could find the second message of a transaction and not the first.
SELECT id FROM {prefix}incoming FORCE INDEX (PRIMARY) WHERE partition_id = ? ORDER BY id LIMIT ?
