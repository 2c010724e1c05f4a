-- Whoever waits for a table waits for a day or a year, and whoever waits for a row for longer than anybody
-- waits for the answer. That it waits for a row is not said to everybody: it updates a single one, and has
-- not come to its commit. Of statements that are sent together each is named by itself, and what is made of
-- several begins with a parenthesis.
SELECT CAST(id AS SIGNED) FROM information_schema.processlist
WHERE db = DATABASE() AND user = SUBSTRING_INDEX(USER(), '@', 1) AND id <> CONNECTION_ID()
  AND (state LIKE 'Waiting for %lock' OR state = 'Updating') AND time > ?
  AND (info LIKE '/* {prefix}worker */%' OR info LIKE '(/* {prefix}worker */%')
