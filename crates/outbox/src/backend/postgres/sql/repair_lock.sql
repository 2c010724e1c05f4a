-- No sequencer may be at work meanwhile. The first statement: the snapshot begins here.
SELECT partition_id FROM {prefix}partitions ORDER BY partition_id FOR NO KEY UPDATE
