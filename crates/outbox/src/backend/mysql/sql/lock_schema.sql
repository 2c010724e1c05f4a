-- Names of such locks are the server's, not the database's, and at most 64 characters long.
SELECT GET_LOCK(LEFT(SHA2(CONCAT(DATABASE(), '.{prefix}schema'), 256), 60), ?)
