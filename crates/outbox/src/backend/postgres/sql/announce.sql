/* {prefix}worker */
WITH forgotten AS (
    -- Ten lives after the last sign of life nobody asks any more.
    DELETE FROM {prefix}processes
    WHERE seen_at NOT BETWEEN {now} - 10 * $3 AND {now} + 10 * $3 AND incarnation <> $1
), announced AS (
    INSERT INTO {prefix}processes (incarnation, queues, host, version, started_at, seen_at)
    VALUES ($1, $2, $4, $5, {now}, {now})
    ON CONFLICT (incarnation) DO UPDATE SET queues = excluded.queues, seen_at = excluded.seen_at
)
-- Not those seen in a future that is none any more since the clock was set back.
SELECT incarnation, queues FROM {prefix}processes
WHERE seen_at BETWEEN {now} - $3 AND {now} + $3 AND incarnation <> $1
UNION ALL SELECT $1, $2
ORDER BY 1
