/* {prefix}worker */
INSERT INTO {prefix}processes (incarnation, queues, host, version, started_at, seen_at)
VALUES (?, ?, ?, ?, {now}, {now})
ON DUPLICATE KEY UPDATE queues = ?, seen_at = {now}
