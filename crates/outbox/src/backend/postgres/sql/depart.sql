DELETE FROM {prefix}processes WHERE incarnation = $1
