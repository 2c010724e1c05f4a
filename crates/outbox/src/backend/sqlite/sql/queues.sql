SELECT queue, partitions FROM {prefix}queues ORDER BY queue
