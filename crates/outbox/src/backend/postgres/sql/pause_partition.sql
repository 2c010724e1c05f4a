INSERT INTO {prefix}paused (partition_id) VALUES ($1) ON CONFLICT DO NOTHING
