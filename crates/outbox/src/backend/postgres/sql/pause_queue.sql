UPDATE {prefix}queues SET paused = $2 WHERE queue = $1
