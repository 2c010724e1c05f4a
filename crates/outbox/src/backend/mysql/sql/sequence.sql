SELECT partition_id, id, size FROM {prefix}incoming FORCE INDEX (PRIMARY)
WHERE partition_id = ? ORDER BY id LIMIT ?
