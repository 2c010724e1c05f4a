SELECT incarnation, queues, host, version, started_at, seen_at, {now} AS asked_at
FROM {prefix}processes ORDER BY started_at, incarnation
