UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS free
STRAIGHT_JOIN {prefix}dead_letters d ON d.id = free.id
SET d.status = 'reprocessing', d.claim_token = ?, d.deadline = {now} + ?
