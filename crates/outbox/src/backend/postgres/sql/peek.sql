-- From number $2 on, or from the head: what a holder would read, without holding anything.
SELECT item.seq, m.id, m.created_at, m.payload_type, m.key, m.headers, m.payload
FROM (
    SELECT partition_id, GREATEST(processed_seq, COALESCE($2, 0) - 1) AS after
    FROM {prefix}processors WHERE partition_id = $1
) AS head
CROSS JOIN LATERAL (
    SELECT GREATEST(r.first_seq, head.after + 1) + item.place - 1 AS seq, item.id
    FROM {prefix}runs r
    CROSS JOIN LATERAL UNNEST(r.ids[
        GREATEST(LEAST(head.after - r.first_seq + 2, 2000), 1)
        : LEAST(head.after + $3 - r.first_seq + 1, 2000)
    ]) WITH ORDINALITY AS item (id, place)
    WHERE r.partition_id = head.partition_id AND r.last_seq > head.after
      AND r.first_seq <= head.after + $3
      -- No run has more than 1000: so the index need not be read to its end, and no place overflows.
      AND r.last_seq < head.after + $3 + 1000
) AS item
CROSS JOIN LATERAL (SELECT * FROM {prefix}messages m WHERE m.id = item.id OFFSET 0) AS m
ORDER BY item.seq
