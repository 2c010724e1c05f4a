/* {prefix}worker */
-- Settles ($3 to $5), renews, and reads what comes next: one statement, one round trip. Without a
-- settlement $3 is null and the cursor stays. $9: the commit need not wait for the disk. "at" is where
-- the statement goes that says where the row is: see `Places`.
-- Messages are looked up one by one ("OFFSET 0"): a plan made while there are few would read all of them
-- instead, and still do so when there are many.
WITH held AS (
    UPDATE {prefix}processors
    SET processed_seq = COALESCE($3, processed_seq),
        attempts = CASE WHEN $3 IS NULL THEN attempts ELSE $4 END,
        last_error = CASE WHEN $3 IS NULL THEN last_error ELSE $5 END,
        lease_until = {now} + lease_millis, renewals = renewals + 1
    WHERE /* at */ partition_id = $1 AND epoch = $2 AND holder IS NOT NULL
      AND processed_seq <= COALESCE($3, processed_seq)
    RETURNING partition_id, processed_seq, attempts, queue, ctid,
              CASE WHEN $9 THEN SET_CONFIG('synchronous_commit', 'off', TRUE) END
), head AS (
    SELECT held.partition_id, held.processed_seq, held.attempts, held.ctid, q.paused
           OR EXISTS (SELECT 1 FROM {prefix}paused o WHERE o.partition_id = held.partition_id) AS paused
    FROM held
    JOIN {prefix}queues q ON q.queue = held.queue
)
SELECT head.processed_seq, head.attempts, head.paused, pg_backend_pid()::bigint AS session,
       next.seq, next.id, next.created_at, next.payload_type, next.key, next.headers, next.payload,
       head.ctid::text AS place
FROM head
LEFT JOIN LATERAL (
    SELECT item.seq, m.id, m.created_at, m.payload_type, m.key, m.headers, m.payload,
           SUM(OCTET_LENGTH(m.payload))
               OVER (ORDER BY item.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM (
        SELECT GREATEST(r.first_seq, head.processed_seq + 1) + item.place - 1 AS seq, item.id
        FROM {prefix}runs r
        CROSS JOIN LATERAL UNNEST(r.ids[
            GREATEST(head.processed_seq - r.first_seq + 2, 1)
            : head.processed_seq + $6 - r.first_seq + 1
        ]) WITH ORDINALITY AS item (id, place)
        WHERE r.partition_id = head.partition_id AND r.last_seq > head.processed_seq
          AND r.first_seq <= head.processed_seq + $6
          -- No run has more than 1000: so the index need not be read to its end.
          AND r.last_seq < head.processed_seq + $6 + 1000
          AND (NOT head.paused OR $8)
    ) AS item
    LEFT JOIN LATERAL (SELECT * FROM {prefix}messages m WHERE m.id = item.id OFFSET 0) AS m ON TRUE
) AS next ON COALESCE(next.bytes_before, 0) < $7
