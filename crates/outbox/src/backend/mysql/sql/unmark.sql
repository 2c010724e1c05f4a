/* {prefix}worker */
-- Driven from the ids: as `id IN (…)` it is a scan on a small table, which waits for open producers.
DELETE i
FROM JSON_TABLE('?', '$[*]' COLUMNS (partition_id BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) AS taken
STRAIGHT_JOIN {prefix}incoming i FORCE INDEX (PRIMARY)
    ON i.partition_id = taken.partition_id AND i.id = taken.id
