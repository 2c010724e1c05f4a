/* {prefix}worker */
-- Driven from the ids, in their order.
DELETE m
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS gone
STRAIGHT_JOIN {prefix}messages m FORCE INDEX (PRIMARY) ON m.id = gone.id
