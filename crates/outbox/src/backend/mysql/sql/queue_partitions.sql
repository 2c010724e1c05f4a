SELECT partitions FROM {prefix}queues WHERE queue = ?
