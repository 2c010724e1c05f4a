-- Ten lives after the last sign of life nobody asks any more, nor for who was seen in a future that is none
-- any more since the clock was set back.
DELETE FROM {prefix}processes WHERE seen_at NOT BETWEEN {now} - 10 * ?1 AND {now} + 10 * ?1
