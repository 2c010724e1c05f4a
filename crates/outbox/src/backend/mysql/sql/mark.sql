-- The row is repeated for every message: its partition, the id of the first message of the statement
-- before, and its place after that one. The ids of one INSERT … VALUES are the session's increment
-- apart; the last of them comes back as this statement's insert id, and with it the increment.
INSERT INTO {prefix}incoming (partition_id, id)
VALUES (?, LAST_INSERT_ID(? + ? * @@SESSION.auto_increment_increment))
