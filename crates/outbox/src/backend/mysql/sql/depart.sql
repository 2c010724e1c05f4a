DELETE FROM {prefix}processes WHERE incarnation = ?
