-- As of the server's last look at its own statistics, which may be a while ago.
SELECT CAST(COALESCE(SUM(data_length + index_length), 0) AS SIGNED) AS bytes
FROM information_schema.tables
WHERE table_schema = DATABASE()
  AND table_name IN ('{prefix}queues', '{prefix}partitions', '{prefix}messages', '{prefix}incoming',
                     '{prefix}runs', '{prefix}processors', '{prefix}vacuum', '{prefix}dead_letters',
                     '{prefix}processes', '{prefix}audit')
