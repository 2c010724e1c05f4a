INSERT INTO {prefix}partitions (queue, `partition`)
SELECT ?, wanted.place - 1
FROM JSON_TABLE(?, '$[*]' COLUMNS (place FOR ORDINALITY)) AS wanted
ON DUPLICATE KEY UPDATE last_seq = {prefix}partitions.last_seq
