SELECT id, at, actor, action, target, reason FROM {prefix}audit
WHERE id < ? ORDER BY id DESC LIMIT ?
