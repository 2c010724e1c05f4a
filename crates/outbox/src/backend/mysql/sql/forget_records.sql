DELETE FROM {prefix}audit WHERE id <= ?
