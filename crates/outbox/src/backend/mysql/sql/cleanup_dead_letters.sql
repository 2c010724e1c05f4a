DELETE d
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS ended
STRAIGHT_JOIN {prefix}dead_letters d ON d.id = ended.id
WHERE d.status IN ('resolved', 'discarded')
