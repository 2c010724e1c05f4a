/* {prefix}worker */
SELECT id, created_at, payload_type, `key`, headers, payload
FROM {prefix}messages FORCE INDEX (PRIMARY) WHERE id IN (?)
