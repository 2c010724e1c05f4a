INSERT INTO {prefix}processes (incarnation, queues, started_at, seen_at)
VALUES (?1, ?2, {now}, {now})
ON CONFLICT (incarnation) DO UPDATE SET queues = excluded.queues, seen_at = excluded.seen_at
