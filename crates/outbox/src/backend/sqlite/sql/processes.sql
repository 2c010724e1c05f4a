-- Not those seen in a future that is none any more since the clock was set back.
SELECT incarnation, queues FROM {prefix}processes
WHERE seen_at BETWEEN {now} - ?1 AND {now} + ?1 ORDER BY incarnation
