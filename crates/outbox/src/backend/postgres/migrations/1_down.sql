DROP FUNCTION IF EXISTS {prefix}enqueue(text, text, text, text, jsonb);
DROP FUNCTION IF EXISTS {prefix}enqueue(text, text, text, bytea, jsonb);
DROP TABLE IF EXISTS {prefix}schema;
DROP TABLE IF EXISTS {prefix}audit;
DROP TABLE IF EXISTS {prefix}processes;
DROP TABLE IF EXISTS {prefix}dead_letters;
DROP TABLE IF EXISTS {prefix}vacuum;
DROP TABLE IF EXISTS {prefix}processors;
DROP TABLE IF EXISTS {prefix}runs;
DROP TABLE IF EXISTS {prefix}messages;
DROP TABLE IF EXISTS {prefix}partitions;
DROP TABLE IF EXISTS {prefix}paused;
DROP TABLE IF EXISTS {prefix}queues;
-- Only tests have one.
DROP TABLE IF EXISTS {prefix}clock;
