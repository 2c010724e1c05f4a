/* {prefix}worker */
-- A run and its messages go together. Whoever does not get the bookkeeping row leaves it to the one
-- who has it.
WITH mark AS (
    SELECT v.partition_id, v.vacuumed_seq FROM {prefix}vacuum v
    WHERE v.partition_id = $1 FOR NO KEY UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT r.last_seq, r.ids
    FROM mark
    JOIN {prefix}processors c ON c.partition_id = mark.partition_id
    JOIN {prefix}runs r ON r.partition_id = mark.partition_id
     AND r.last_seq > mark.vacuumed_seq AND r.last_seq <= c.processed_seq
    WHERE r.first_seq <= mark.vacuumed_seq + $2
      -- No run is longer, and the index knows its last number.
      AND r.last_seq < mark.vacuumed_seq + $2 + 1000
), unmarked AS (
    UPDATE {prefix}vacuum v SET vacuumed_seq = swept.last_seq
    FROM (SELECT MAX(last_seq) AS last_seq FROM due) AS swept
    WHERE v.partition_id = $1 AND swept.last_seq IS NOT NULL
), unlisted AS (
    DELETE FROM {prefix}runs r USING due
    WHERE r.partition_id = $1 AND r.last_seq = due.last_seq
), removed AS (
    DELETE FROM {prefix}messages WHERE id = ANY (ARRAY(SELECT UNNEST(ids) FROM due)) RETURNING 1
)
SELECT (SELECT COUNT(*) FROM removed), NOT EXISTS (SELECT 1 FROM mark) AS busy
