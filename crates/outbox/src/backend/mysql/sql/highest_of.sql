SELECT MAX(id) AS id FROM {prefix}incoming FORCE INDEX (PRIMARY) WHERE partition_id = ?
