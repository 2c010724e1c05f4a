UPDATE {prefix}queues SET paused = ? WHERE queue = ?
