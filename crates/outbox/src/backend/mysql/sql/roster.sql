SELECT incarnation, queues, started_at, seen_at FROM {prefix}processes ORDER BY started_at, incarnation
