INSERT INTO {prefix}processes (incarnation, queues, host, version, started_at, seen_at)
VALUES (?1, ?2, ?3, ?4, {now}, {now})
ON CONFLICT (incarnation) DO UPDATE SET queues = excluded.queues, seen_at = excluded.seen_at
