-- In which cluster, so that a dump is known even if nobody had sequenced before it was taken.
INSERT INTO {prefix}partitions (queue, partition, cluster)
SELECT $1, GENERATE_SERIES(0, $2 - 1), control.system_identifier FROM pg_control_system() AS control
ON CONFLICT (queue, partition) DO NOTHING
