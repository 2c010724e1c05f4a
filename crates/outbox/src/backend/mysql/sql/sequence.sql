/* {prefix}worker */
SELECT partition_id, id, size FROM {prefix}incoming FORCE INDEX (PRIMARY)
WHERE partition_id = ? AND id <= @outbox_highest ORDER BY id LIMIT ?
