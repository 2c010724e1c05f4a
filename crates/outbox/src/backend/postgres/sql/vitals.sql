-- One row. What an account may not see of others is null or not counted.
SELECT {now} AS now_millis,
       oldest.pid AS oldest_pid, oldest.seconds AS oldest_seconds,
       (SELECT COUNT(*) FROM pg_prepared_xacts
        WHERE database = CURRENT_DATABASE() AND prepared < NOW() - INTERVAL '5 minutes') AS prepared,
       (SELECT MAX(AGE(xmin)) FROM pg_replication_slots)::bigint AS slot_age,
       (SELECT SUM(numbackends)::bigint FROM pg_stat_database) AS connections,
       PG_HAS_ROLE('pg_read_all_stats', 'USAGE') AS sees_all,
       -- Those that are kept for administrators are nobody else's.
       CURRENT_SETTING('max_connections')::bigint
           - CURRENT_SETTING('superuser_reserved_connections')::bigint
           - COALESCE(CURRENT_SETTING('reserved_connections', TRUE)::bigint, 0) AS max_connections,
       CURRENT_SETTING('default_transaction_isolation') AS isolation,
       PG_NOTIFICATION_QUEUE_USAGE() AS notifications,
       CURRENT_SETTING('autovacuum') = 'on' AS autovacuum,
       tables.dead AS dead_rows, tables.live AS live_rows,
       (SELECT STRING_AGG(one.privilege || ' on ' || needed.relation, ', ')
        FROM (VALUES ('{prefix}schema', 'SELECT'),
                     ('{prefix}queues', 'SELECT,INSERT,UPDATE'),
                     ('{prefix}partitions', 'SELECT,INSERT,UPDATE'),
                     ('{prefix}processors', 'SELECT,INSERT,UPDATE'),
                     ('{prefix}vacuum', 'SELECT,INSERT,UPDATE'),
                     ('{prefix}messages', 'SELECT,INSERT,DELETE'),
                     ('{prefix}runs', 'SELECT,INSERT,DELETE'),
                     ('{prefix}paused', 'SELECT,INSERT,DELETE'),
                     ('{prefix}dead_letters', 'SELECT,INSERT,UPDATE,DELETE'),
                     ('{prefix}processes', 'SELECT,INSERT,UPDATE,DELETE'),
                     ('{prefix}audit', 'SELECT,INSERT,DELETE')
             ) AS needed (relation, privileges),
             UNNEST(STRING_TO_ARRAY(needed.privileges, ',')) AS one (privilege)
        WHERE NOT HAS_TABLE_PRIVILEGE(needed.relation, one.privilege)) AS missing_privileges
FROM (SELECT SUM(n_dead_tup)::bigint AS dead, SUM(n_live_tup)::bigint AS live
      FROM pg_stat_user_tables
      WHERE relid IN ('{prefix}messages'::regclass, '{prefix}runs'::regclass)) AS tables
LEFT JOIN (SELECT pid, EXTRACT(EPOCH FROM CLOCK_TIMESTAMP() - xact_start)::bigint AS seconds
           FROM pg_stat_activity
           WHERE datname = CURRENT_DATABASE() AND pid <> PG_BACKEND_PID() AND xact_start IS NOT NULL
             AND backend_type = 'client backend'
           ORDER BY xact_start LIMIT 1) AS oldest ON TRUE
