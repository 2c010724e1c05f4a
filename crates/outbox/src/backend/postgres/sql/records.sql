SELECT id, at, actor, action, target, reason FROM {prefix}audit
WHERE id < $1 ORDER BY id DESC LIMIT $2
