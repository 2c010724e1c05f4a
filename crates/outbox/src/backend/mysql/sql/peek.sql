-- The run that has the first message asked for, and those after it: see head.sql.
(
    SELECT CAST(? AS SIGNED) AS first_seq,
           SUBSTR(r.ids, 1 + (CAST(? AS SIGNED) - r.first_seq) * r.width, ? * r.width) AS ids
    FROM {prefix}runs r FORCE INDEX (PRIMARY)
    WHERE r.partition_id = ? AND r.first_seq <= ?
    ORDER BY r.first_seq DESC LIMIT 1
) UNION ALL (
    SELECT r.first_seq, SUBSTR(r.ids, 1, ? * r.width)
    FROM {prefix}runs r FORCE INDEX (PRIMARY)
    WHERE r.partition_id = ? AND r.first_seq > ? AND r.first_seq < ?
)
