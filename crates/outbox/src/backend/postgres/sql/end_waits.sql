-- A statement that is ended tells whoever still waits for it, and its connection goes on.
SELECT COUNT(pg_cancel_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
  AND state = 'active' AND wait_event_type = 'Lock'
  AND query_start < clock_timestamp() - $1 * interval '1 ms'
  AND starts_with(query, '/* {prefix}worker */')
