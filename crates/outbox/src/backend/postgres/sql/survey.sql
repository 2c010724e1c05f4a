/* {prefix}worker */
-- In a snapshot in which nothing was found before ($2) nothing can be found now. With $3 nobody looks
-- at the messages: every partition has something to do.
SELECT now.snapshot, partition.*
FROM (SELECT pg_current_snapshot()::text AS snapshot) AS now
LEFT JOIN LATERAL (
    SELECT p.partition_id,
           $3 OR p.upto IS NOT NULL
           OR EXISTS (SELECT 1 FROM {prefix}messages m
                      WHERE m.partition_id = p.partition_id AND m.xid >= pg_snapshot_xmax(p.seen))
           OR EXISTS (SELECT 1 FROM pg_snapshot_xip(p.seen) AS open (xid)
                      JOIN {prefix}messages m
                        ON m.partition_id = p.partition_id AND m.xid = open.xid
                      WHERE pg_visible_in_snapshot(open.xid, pg_current_snapshot())) AS unsequenced,
           p.last_seq > c.processed_seq AND NOT q.paused AND NOT EXISTS (
               SELECT 1 FROM {prefix}paused o WHERE o.partition_id = p.partition_id
           ) AS pending,
           p.last_seq, c.holder, c.epoch, c.renewals, c.lease_millis, c.lease_until <= {now} AS expired
    FROM {prefix}partitions p
    JOIN {prefix}processors c ON c.partition_id = p.partition_id
    JOIN {prefix}queues q ON q.queue = p.queue
    WHERE p.partition_id = ANY ($1) AND now.snapshot IS DISTINCT FROM $2
) AS partition ON unsequenced OR pending
