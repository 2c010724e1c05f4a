-- Runs of at most 1000, of every message that no run names, behind those that have their numbers.
WITH listed AS (
    SELECT item.id FROM {prefix}runs r CROSS JOIN LATERAL UNNEST(r.ids) AS item (id)
), missing AS (
    SELECT m.partition_id, m.id,
           ROW_NUMBER() OVER (PARTITION BY m.partition_id ORDER BY m.id) AS place
    FROM {prefix}messages m
    WHERE NOT EXISTS (SELECT 1 FROM listed WHERE listed.id = m.id)
), chunk AS (
    SELECT partition_id, MIN(place) AS first_place, MAX(place) AS last_place,
           ARRAY_AGG(id ORDER BY id) AS ids
    FROM missing GROUP BY partition_id, (place - 1) / 1000
), written AS (
    INSERT INTO {prefix}runs (partition_id, first_seq, last_seq, ids)
    SELECT p.partition_id, p.last_seq + chunk.first_place, p.last_seq + chunk.last_place, chunk.ids
    FROM chunk JOIN {prefix}partitions p ON p.partition_id = chunk.partition_id
), total AS (
    SELECT partition_id, COUNT(*) AS count FROM missing GROUP BY partition_id
), counted AS (
    UPDATE {prefix}partitions p SET last_seq = p.last_seq + total.count
    FROM total WHERE p.partition_id = total.partition_id
)
SELECT COALESCE(SUM(count), 0)::bigint FROM total
