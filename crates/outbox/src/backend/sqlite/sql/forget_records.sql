DELETE FROM {prefix}audit WHERE id <= ?1
