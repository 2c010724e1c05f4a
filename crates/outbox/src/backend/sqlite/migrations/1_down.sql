DROP TABLE IF EXISTS {prefix}schema;
DROP TABLE IF EXISTS {prefix}processes;
DROP TABLE IF EXISTS {prefix}dead_letters;
DROP TABLE IF EXISTS {prefix}processors;
DROP TABLE IF EXISTS {prefix}messages;
DROP TABLE IF EXISTS {prefix}partitions;
DROP TABLE IF EXISTS {prefix}queues;
