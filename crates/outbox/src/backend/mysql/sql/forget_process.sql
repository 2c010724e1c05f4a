DELETE FROM {prefix}processes WHERE incarnation = ? AND seen_at < {now} - 10 * ?
