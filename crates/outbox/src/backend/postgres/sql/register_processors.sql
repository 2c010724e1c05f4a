WITH swept AS (
    INSERT INTO {prefix}vacuum (partition_id)
    SELECT partition_id FROM {prefix}partitions WHERE queue = $1
    ON CONFLICT (partition_id) DO NOTHING
), listed AS (
    UPDATE {prefix}queues SET partition_ids = ARRAY(
        SELECT partition_id FROM {prefix}partitions WHERE queue = $1 ORDER BY partition
    )
    WHERE queue = $1
)
INSERT INTO {prefix}processors (partition_id, queue)
SELECT partition_id, queue FROM {prefix}partitions WHERE queue = $1
ON CONFLICT (partition_id) DO NOTHING
