INSERT INTO {prefix}incoming (partition_id, id, size) VALUES
