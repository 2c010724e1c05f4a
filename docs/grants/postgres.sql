-- What each account needs on PostgreSQL. Run it as an administrator, in the application's database, with
-- your accounts' names for outbox_migrations, outbox_worker and outbox_producer. The first part comes
-- before the first migration, the second after every migration. USAGE and EXECUTE are what PUBLIC usually has; here
-- nothing is left to that.

-- 1. Before: whoever migrates owns the tables, and runs `repair` after a restore.
GRANT USAGE, CREATE ON SCHEMA public TO outbox_migrations;
GRANT USAGE ON SCHEMA public TO outbox_worker, outbox_producer;

-- 2. After: processes with workers, and operators.
GRANT SELECT ON outbox_schema TO outbox_worker;
GRANT SELECT, INSERT, UPDATE ON outbox_queues, outbox_partitions, outbox_processors, outbox_vacuum
    TO outbox_worker;
GRANT SELECT, INSERT, DELETE ON outbox_messages, outbox_runs, outbox_paused, outbox_audit TO outbox_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_dead_letters, outbox_processes TO outbox_worker;
-- Processes that only enqueue, `without_workers` or in any language. They cannot read what others enqueued.
GRANT SELECT ON outbox_schema, outbox_queues, outbox_partitions, outbox_processors TO outbox_producer;
GRANT INSERT, SELECT (id) ON outbox_messages TO outbox_producer;
GRANT EXECUTE ON FUNCTION outbox_enqueue(text, text, text, text, jsonb),
    outbox_enqueue(text, text, text, bytea, jsonb) TO outbox_producer;
