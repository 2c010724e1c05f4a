INSERT INTO {prefix}audit (at, actor, action, target, reason) VALUES ({now}, ?1, ?2, ?3, ?4)
RETURNING id
