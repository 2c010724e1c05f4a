SELECT partition_id, id FROM {prefix}incoming FORCE INDEX (PRIMARY)
WHERE partition_id = ? ORDER BY id LIMIT ?
