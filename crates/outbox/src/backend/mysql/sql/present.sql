/* {prefix}worker */
-- Driven from the ids, in their order: those that are still there.
SELECT m.id
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS swept
STRAIGHT_JOIN {prefix}messages m FORCE INDEX (PRIMARY) ON m.id = swept.id
