INSERT INTO {prefix}incoming (partition_id, id) VALUES
