-- Ten lives after the last sign of life nobody asks any more.
DELETE FROM {prefix}processes WHERE seen_at < {now} - 10 * ?1
