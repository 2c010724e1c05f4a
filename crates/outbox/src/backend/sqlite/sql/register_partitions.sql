INSERT INTO {prefix}partitions (queue, partition)
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?2)
SELECT ?1, n FROM numbers WHERE TRUE
ON CONFLICT (queue, partition) DO NOTHING
