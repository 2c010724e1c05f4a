/* {prefix}worker */
-- A statement of its own: the one that looks must take its snapshot when the locks are already held.
-- DISTINCT keeps the list a table of its own: MySQL cannot lock a join with a table function.
SELECT p.partition_id, p.last_seq
FROM (
    SELECT DISTINCT wanted.partition_id
    FROM JSON_TABLE('?', '$[*]' COLUMNS (partition_id BIGINT PATH '$')) AS wanted
) AS wanted
STRAIGHT_JOIN {prefix}partitions p FORCE INDEX (PRIMARY) ON p.partition_id = wanted.partition_id
FOR UPDATE SKIP LOCKED
