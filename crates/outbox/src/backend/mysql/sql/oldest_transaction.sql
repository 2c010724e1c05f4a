-- The server writes down when a transaction started by its own clock on the wall.
SELECT CAST(trx_mysql_thread_id AS SIGNED) AS id,
       CAST(TIMESTAMPDIFF(SECOND, CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'), UTC_TIMESTAMP()) AS SIGNED)
           AS seconds
FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> CONNECTION_ID()
ORDER BY trx_started LIMIT 1
