-- Ten lives after the last sign of life nobody asks any more.
SELECT incarnation, queues, seen_at >= {now} - ? AS alive, seen_at < {now} - 10 * ? AS forgotten
FROM {prefix}processes ORDER BY incarnation
