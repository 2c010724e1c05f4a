-- New is what is visible in this statement's snapshot and was not in the last one: rows of
-- transactions that had not begun then, and of those that were open then. In the order of their ids.
WITH state AS MATERIALIZED (
    SELECT partition_id, last_seq, seen, upto_id, COALESCE(upto, pg_current_snapshot()) AS upto
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
    ORDER BY found.id + 0 LIMIT $2
), run AS (
    SELECT COUNT(*) AS count, MAX(id) AS last_id, ARRAY_AGG(id ORDER BY id) AS ids FROM fresh
), written AS (
    INSERT INTO {prefix}runs (partition_id, first_seq, last_seq, ids)
    SELECT partition_id, last_seq + 1, last_seq + count, ids FROM state CROSS JOIN run
    WHERE count > 0
)
UPDATE {prefix}partitions p
SET last_seq = p.last_seq + run.count,
    seen = CASE WHEN run.count < $2 THEN state.upto ELSE p.seen END,
    upto = CASE WHEN run.count < $2 THEN NULL ELSE state.upto END,
    upto_id = CASE WHEN run.count < $2 THEN 0 ELSE run.last_id END,
    cluster = (SELECT system_identifier FROM pg_control_system())
FROM state CROSS JOIN run
WHERE p.partition_id = $1 AND (run.count > 0 OR p.upto IS NOT NULL)
RETURNING run.count
