-- What each account needs on MySQL and MariaDB. Run it as an administrator, in the application's
-- database, with your accounts' names for outbox_migrations, outbox_worker and outbox_producer. The first
-- part comes before the first migration, the second after every migration.

-- 1. Before: whoever migrates makes the tables and the procedure outbox_enqueue.
GRANT SELECT, INSERT, UPDATE, CREATE, DROP ON * TO outbox_migrations;
GRANT CREATE ROUTINE, ALTER ROUTINE ON * TO outbox_migrations;

-- 2. After: processes with workers, and operators.
GRANT SELECT ON outbox_schema TO outbox_worker;
GRANT SELECT, INSERT, UPDATE ON outbox_queues TO outbox_worker;
GRANT SELECT, INSERT, UPDATE ON outbox_partitions TO outbox_worker;
GRANT SELECT, INSERT, UPDATE ON outbox_processors TO outbox_worker;
GRANT SELECT, INSERT, UPDATE ON outbox_vacuum TO outbox_worker;
GRANT SELECT, INSERT, DELETE ON outbox_messages TO outbox_worker;
GRANT SELECT, INSERT, DELETE ON outbox_incoming TO outbox_worker;
GRANT SELECT, INSERT, DELETE ON outbox_runs TO outbox_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_dead_letters TO outbox_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_processes TO outbox_worker;
GRANT SELECT, INSERT, DELETE ON outbox_audit TO outbox_worker;
-- Processes that only enqueue, `without_workers` or in any language. They cannot read what others enqueued.
GRANT SELECT ON outbox_schema TO outbox_producer;
GRANT SELECT ON outbox_queues TO outbox_producer;
GRANT SELECT ON outbox_partitions TO outbox_producer;
GRANT SELECT ON outbox_processors TO outbox_producer;
GRANT SELECT ON outbox_vacuum TO outbox_producer;
GRANT INSERT ON outbox_messages TO outbox_producer;
GRANT INSERT ON outbox_incoming TO outbox_producer;
GRANT EXECUTE ON PROCEDURE outbox_enqueue TO outbox_producer;
