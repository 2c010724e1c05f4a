/* {prefix}worker */
SELECT SUM(PG_TOTAL_RELATION_SIZE(relation))::bigint AS bytes
FROM (VALUES ('{prefix}queues'::regclass), ('{prefix}partitions'), ('{prefix}messages'), ('{prefix}runs'),
             ('{prefix}processors'), ('{prefix}vacuum'), ('{prefix}dead_letters'), ('{prefix}processes'),
             ('{prefix}audit')) AS tables (relation)
