-- One run per partition, of every message that no run names, behind those that have their numbers.
WITH listed AS (
    SELECT item.id FROM {prefix}runs r CROSS JOIN LATERAL UNNEST(r.ids) AS item (id)
), missing AS (
    SELECT m.partition_id, COUNT(*) AS count, ARRAY_AGG(m.id ORDER BY m.id) AS ids
    FROM {prefix}messages m
    WHERE NOT EXISTS (SELECT 1 FROM listed WHERE listed.id = m.id)
    GROUP BY m.partition_id
), written AS (
    INSERT INTO {prefix}runs (partition_id, first_seq, last_seq, ids)
    SELECT p.partition_id, p.last_seq + 1, p.last_seq + missing.count, missing.ids
    FROM missing JOIN {prefix}partitions p ON p.partition_id = missing.partition_id
), counted AS (
    UPDATE {prefix}partitions p SET last_seq = p.last_seq + missing.count
    FROM missing WHERE p.partition_id = missing.partition_id
)
SELECT COALESCE(SUM(count), 0)::bigint FROM missing
