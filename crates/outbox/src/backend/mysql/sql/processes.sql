/* {prefix}worker */
-- Ten lives after the last sign of life nobody asks any more. Nobody is alive who was seen in a future
-- that is none any more since the clock was set back.
SELECT incarnation, queues, seen_at BETWEEN {now} - ? AND {now} + ? AS alive,
       ABS(seen_at - {now}) > 10 * ? AS forgotten
FROM {prefix}processes ORDER BY incarnation
