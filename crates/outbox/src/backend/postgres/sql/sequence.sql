-- New is what is visible in this statement's snapshot and was not in the last one: rows of
-- transactions that had not begun then, and of those that were open then. In the order of their ids.
-- Every step reads the whole difference; one that was too large for a step is taken in larger ones.
WITH state AS MATERIALIZED (
    SELECT partition_id, last_seq, seen, upto_id, COALESCE(upto, pg_current_snapshot()) AS upto,
           CASE WHEN upto IS NULL THEN $2 ELSE 64 * $2 END AS step
    FROM {prefix}partitions WHERE partition_id = $1
), fresh AS MATERIALIZED (
    SELECT found.id
    FROM state CROSS JOIN LATERAL (
        SELECT m.id, m.xid FROM {prefix}messages m
        WHERE m.partition_id = $1 AND m.xid >= pg_snapshot_xmax(state.seen)
        UNION ALL
        SELECT m.id, m.xid FROM pg_snapshot_xip(state.seen) AS open (xid)
        JOIN {prefix}messages m ON m.partition_id = $1 AND m.xid = open.xid
    ) AS found
    WHERE found.id > state.upto_id AND pg_visible_in_snapshot(found.xid, state.upto)
    -- "+ 0" keeps the planner from walking the whole primary key in search of the first few.
    ORDER BY found.id + 0 LIMIT (SELECT step FROM state)
), run AS (
    SELECT MIN(place) AS first_place, MAX(place) AS last_place, ARRAY_AGG(id ORDER BY id) AS ids
    FROM (SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS place FROM fresh) AS placed
    GROUP BY (place - 1) / $2
), written AS (
    INSERT INTO {prefix}runs (partition_id, first_seq, last_seq, ids)
    SELECT partition_id, last_seq + first_place, last_seq + last_place, ids
    FROM state CROSS JOIN run
), total AS (
    SELECT COUNT(*) AS count, MAX(id) AS last_id FROM fresh
)
UPDATE {prefix}partitions p
SET last_seq = p.last_seq + total.count,
    seen = CASE WHEN total.count < state.step THEN state.upto ELSE p.seen END,
    upto = CASE WHEN total.count < state.step THEN NULL ELSE state.upto END,
    upto_id = CASE WHEN total.count < state.step THEN 0 ELSE total.last_id END,
    cluster = (SELECT system_identifier FROM pg_control_system())
FROM state CROSS JOIN total
WHERE p.partition_id = $1 AND (total.count > 0 OR p.upto IS NOT NULL)
RETURNING total.count, total.count = state.step
