-- First: whatever is left behind by a removal that was cut short, nobody takes it for a schema.
DROP TABLE IF EXISTS {prefix}schema;
DROP PROCEDURE IF EXISTS {prefix}enqueue;
DROP TABLE IF EXISTS {prefix}audit;
DROP TABLE IF EXISTS {prefix}processes;
DROP TABLE IF EXISTS {prefix}dead_letters;
DROP TABLE IF EXISTS {prefix}vacuum;
DROP TABLE IF EXISTS {prefix}processors;
DROP TABLE IF EXISTS {prefix}runs;
DROP TABLE IF EXISTS {prefix}incoming;
DROP TABLE IF EXISTS {prefix}messages;
DROP TABLE IF EXISTS {prefix}partitions;
DROP TABLE IF EXISTS {prefix}queues;
-- Only tests have one.
DROP TABLE IF EXISTS {prefix}clock;
