SELECT CAST(trx_mysql_thread_id AS SIGNED) AS id,
       CAST(TIMESTAMPDIFF(SECOND, trx_started, NOW()) AS SIGNED) AS seconds
FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> CONNECTION_ID() AND trx_mysql_thread_id <> 0
ORDER BY trx_started LIMIT 1
