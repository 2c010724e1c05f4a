/* {prefix}worker */
DELETE FROM {prefix}processes WHERE incarnation = ? AND ABS(seen_at - {now}) > 10 * ?
