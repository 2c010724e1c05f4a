UPDATE {prefix}partitions
SET seen = pg_current_snapshot(), upto = NULL, upto_id = 0,
    cluster = (SELECT system_identifier FROM pg_control_system())
