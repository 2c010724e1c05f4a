SELECT {now} AS now_millis, CAST(@@max_connections AS SIGNED) AS max_connections
