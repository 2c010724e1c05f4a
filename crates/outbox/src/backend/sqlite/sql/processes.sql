SELECT incarnation, queues FROM {prefix}processes WHERE seen_at >= {now} - ?1 ORDER BY incarnation
