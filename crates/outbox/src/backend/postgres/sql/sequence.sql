/* {prefix}worker */
-- New is what is visible in this statement's snapshot and was not in the last one: rows of
-- transactions that had not begun then, and of those that were open then. In the order of their ids,
-- in runs of at most $3. Every step reads the whole difference: the first one takes $2, so that
-- delivery begins, the others take $4. With $5 it is remembered that there is nothing new as well: what
-- transactions wrote that are still open is then not looked at again before they end.
--
-- The snapshot is older than the locks. A partition that another sequencer had in between is left
-- alone: the row that was locked is then not the row that the snapshot sees.
WITH locked AS MATERIALIZED (
    SELECT ctid, partition_id, last_seq, seen, upto, upto_id, cluster
    FROM {prefix}partitions WHERE partition_id = ANY ($1)
    ORDER BY partition_id
    FOR NO KEY UPDATE SKIP LOCKED
), state AS MATERIALIZED (
    SELECT locked.partition_id, locked.last_seq, locked.seen, locked.upto_id,
           COALESCE(locked.upto, pg_current_snapshot()) AS upto, control.system_identifier AS cluster,
           CASE WHEN locked.upto IS NULL THEN $2 ELSE $4 END AS most,
           COALESCE(locked.cluster <> control.system_identifier, FALSE)
           OR pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(locked.seen) AS foreign_ids
    FROM locked
    JOIN {prefix}partitions p ON p.partition_id = locked.partition_id AND p.ctid = locked.ctid
    CROSS JOIN pg_control_system() AS control
), fresh AS MATERIALIZED (
    SELECT state.*, ARRAY(
        SELECT found.id
        FROM (
            SELECT m.id, m.xid FROM {prefix}messages m
            WHERE m.partition_id = state.partition_id AND m.xid >= pg_snapshot_xmax(state.seen)
            UNION ALL
            SELECT late.id, late.xid
            FROM pg_snapshot_xip(state.seen) AS open (xid)
            CROSS JOIN LATERAL (
                SELECT m.id, m.xid FROM {prefix}messages m
                WHERE m.partition_id = state.partition_id AND m.xid = open.xid OFFSET 0
            ) AS late
            -- What is open still may have written millions, which nobody sees.
            WHERE pg_visible_in_snapshot(open.xid, state.upto)
        ) AS found
        -- "+ 0" keeps the planner from walking the whole primary key in search of the first few.
        WHERE found.id + 0 > state.upto_id AND pg_visible_in_snapshot(found.xid, state.upto)
        ORDER BY found.id + 0 LIMIT state.most
    ) AS ids
    FROM state WHERE NOT foreign_ids
), written AS (
    INSERT INTO {prefix}runs (partition_id, first_seq, last_seq, ids)
    SELECT partition_id, last_seq + place, last_seq + LEAST(place + $3 - 1, CARDINALITY(ids)),
           ids[place : place + $3 - 1]
    FROM fresh CROSS JOIN LATERAL GENERATE_SERIES(1, CARDINALITY(ids), $3) AS place
), moved AS (
    UPDATE {prefix}partitions p
    SET last_seq = p.last_seq + CARDINALITY(fresh.ids),
        seen = CASE WHEN CARDINALITY(fresh.ids) < fresh.most THEN fresh.upto ELSE p.seen END,
        upto = CASE WHEN CARDINALITY(fresh.ids) < fresh.most THEN NULL ELSE fresh.upto END,
        upto_id = CASE WHEN CARDINALITY(fresh.ids) < fresh.most THEN 0 ELSE fresh.ids[CARDINALITY(fresh.ids)] END,
        cluster = fresh.cluster
    FROM fresh
    WHERE p.partition_id = fresh.partition_id AND (CARDINALITY(fresh.ids) > 0 OR p.upto IS NOT NULL OR $5)
)
SELECT state.partition_id, state.foreign_ids, COALESCE(CARDINALITY(fresh.ids), 0)::bigint AS count,
       COALESCE(CARDINALITY(fresh.ids) = fresh.most, FALSE) AS more
FROM state LEFT JOIN fresh ON fresh.partition_id = state.partition_id
