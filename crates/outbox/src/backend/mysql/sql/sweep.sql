/* {prefix}worker */
-- From where the vacuum stopped; the last run may go over the limit.
SELECT r.first_seq, r.last_seq, r.ids
FROM {prefix}processors c
STRAIGHT_JOIN {prefix}runs r FORCE INDEX (PRIMARY) ON r.partition_id = c.partition_id
WHERE c.partition_id = ? AND r.first_seq > ? AND r.first_seq <= ? AND r.last_seq <= c.processed_seq
ORDER BY r.first_seq
