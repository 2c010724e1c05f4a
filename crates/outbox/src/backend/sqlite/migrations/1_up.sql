CREATE TABLE {prefix}queues (
    queue TEXT NOT NULL PRIMARY KEY,
    partitions INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- `last_seq` and `last_id`: the last sequenced message; `last_count`: how many the last step had.
-- SQLite has one writer, so ids are in commit order and everything behind `last_id` is new: the order
-- lives in the ids and needs no runs.
CREATE TABLE {prefix}partitions (
    partition_id INTEGER NOT NULL PRIMARY KEY,
    queue TEXT NOT NULL,
    partition INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    last_seq INTEGER NOT NULL DEFAULT 0,
    last_id INTEGER NOT NULL DEFAULT 0,
    last_count INTEGER NOT NULL DEFAULT 0,
    UNIQUE (queue, partition)
);

-- AUTOINCREMENT: an id is never used again, not even after the row with the highest is removed.
CREATE TABLE {prefix}messages (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    partition_id INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    payload_type TEXT NOT NULL,
    key TEXT,
    headers TEXT,
    payload BLOB NOT NULL
);
CREATE INDEX {prefix}messages_by_partition ON {prefix}messages (partition_id);

CREATE TABLE {prefix}processors (
    partition_id INTEGER NOT NULL PRIMARY KEY,
    processed_seq INTEGER NOT NULL DEFAULT 0,
    processed_id INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    renewals INTEGER NOT NULL DEFAULT 0,
    holder TEXT,
    lease_until INTEGER NOT NULL DEFAULT 0,
    lease_millis INTEGER NOT NULL DEFAULT 0,
    abandoned INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE {prefix}dead_letters (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    partition_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    message_id INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    failed_at INTEGER NOT NULL,
    payload_type TEXT NOT NULL,
    key TEXT,
    headers TEXT,
    payload BLOB NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    claim_token TEXT,
    deadline INTEGER,
    completed_at INTEGER,
    requeued_as INTEGER,
    UNIQUE (partition_id, seq)
);
-- How many of a partition wait is asked all the time, and there may be many that do not wait any more.
CREATE INDEX {prefix}dead_letters_by_status ON {prefix}dead_letters (partition_id, status);
CREATE INDEX {prefix}dead_letters_by_age ON {prefix}dead_letters (status, id);

CREATE TABLE {prefix}processes (
    incarnation TEXT NOT NULL PRIMARY KEY,
    queues TEXT NOT NULL,
    host TEXT NOT NULL,
    version TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Who did what by hand, and why. The newest few thousand are kept.
CREATE TABLE {prefix}audit (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    reason TEXT NOT NULL
);

-- For producers in any language: what is inserted here is checked as the library does, and becomes a
-- message. SQLite has no SHA-256, so `hash` comes with the `key`: the first 4 bytes, big-endian, of its
-- SHA-256. What has no key goes anywhere.
CREATE VIEW {prefix}enqueue AS
SELECT NULL AS queue, NULL AS hash, NULL AS key, NULL AS type, NULL AS payload, NULL AS headers
WHERE FALSE;
CREATE TRIGGER {prefix}enqueue_one INSTEAD OF INSERT ON {prefix}enqueue BEGIN
    SELECT RAISE(ABORT, 'there is no such queue: see {prefix}queues; outbox enqueue --create makes one')
    WHERE NOT EXISTS (SELECT 1 FROM {prefix}partitions p WHERE p.queue = NEW.queue);
    SELECT RAISE(ABORT, 'the payload is NULL, but an empty one is empty text') WHERE NEW.payload IS NULL;
    SELECT RAISE(ABORT, 'the payload is over the limit of 1048576 bytes')
    WHERE LENGTH(CAST(NEW.payload AS BLOB)) > 1048576;
    SELECT RAISE(ABORT, 'invalid payload type: 1 to 1024 printable ASCII characters')
    -- Text functions stop at NUL.
    WHERE COALESCE(TYPEOF(NEW.type) <> 'text' OR LENGTH(CAST(NEW.type AS BLOB)) NOT BETWEEN 1 AND 1024
        OR NEW.type GLOB '*[^ -~]*' OR INSTR(CAST(NEW.type AS BLOB), x'00') > 0, TRUE);
    SELECT RAISE(ABORT, 'invalid key: at most 1024 bytes of text without NUL')
    WHERE NEW.key IS NOT NULL AND (TYPEOF(NEW.key) <> 'text'
        OR LENGTH(CAST(NEW.key AS BLOB)) > 1024 OR INSTR(CAST(NEW.key AS BLOB), x'00') > 0);
    SELECT RAISE(ABORT, 'a key needs its hash: the first 4 bytes, big-endian, of its SHA-256')
    WHERE (NEW.key IS NOT NULL OR NEW.hash IS NOT NULL)
      AND COALESCE(NEW.hash <> CAST(NEW.hash AS INTEGER) OR NEW.hash NOT BETWEEN 0 AND 4294967295, TRUE);
    SELECT RAISE(ABORT, 'invalid headers: a JSON object of text, like {"name": "value"}')
    WHERE NEW.headers IS NOT NULL
      AND CASE WHEN JSON_VALID(NEW.headers) THEN JSON_TYPE(NEW.headers) <> 'object' ELSE TRUE END;
    SELECT RAISE(ABORT, 'invalid header: names are 1 to 256 printable ASCII characters, each once; values at most 8192 bytes of text without NUL; at most 64 headers')
    WHERE NEW.headers IS NOT NULL AND (
        SELECT COUNT(*) > 64 OR COUNT(DISTINCT header.key) < COUNT(*) OR MAX(
            LENGTH(CAST(header.key AS BLOB)) NOT BETWEEN 1 AND 256 OR header.key GLOB '*[^ -~]*'
            OR header.type <> 'text' OR LENGTH(CAST(header.value AS BLOB)) > 8192
        ) OR INSTR(REPLACE(JSON(NEW.headers), '\\', ''), '\u0000') > 0
        FROM JSON_EACH(NEW.headers) header
    );
    INSERT INTO {prefix}messages (partition_id, created_at, payload_type, key, headers, payload)
    SELECT p.partition_id, {now}, NEW.type, NEW.key, NULLIF(JSON(NEW.headers), '{}'),
        CAST(NEW.payload AS BLOB)
    FROM {prefix}queues q
    JOIN {prefix}partitions p ON p.queue = q.queue
        -- Some languages know no integers of this size, and say it as a fraction.
        AND p.partition = CAST(COALESCE(NEW.hash, RANDOM() & 4294967295) AS INTEGER) % q.partitions
    WHERE q.queue = NEW.queue;
END;

CREATE TABLE {prefix}schema (version INTEGER NOT NULL PRIMARY KEY);
INSERT INTO {prefix}schema (version) VALUES (1);
