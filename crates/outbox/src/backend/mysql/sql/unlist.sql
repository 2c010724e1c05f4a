/* {prefix}worker */
DELETE r
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id BIGINT PATH '$[0]', first_seq BIGINT PATH '$[1]'))
    AS swept
STRAIGHT_JOIN {prefix}runs r FORCE INDEX (PRIMARY)
    ON r.partition_id = swept.partition_id AND r.first_seq = swept.first_seq
