INSERT INTO {prefix}audit (at, actor, action, target, reason) VALUES ({now}, ?, ?, ?, ?)
