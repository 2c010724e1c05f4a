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

CREATE TABLE {prefix}processes (
    incarnation TEXT NOT NULL PRIMARY KEY,
    queues TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE {prefix}schema (version INTEGER NOT NULL PRIMARY KEY);
INSERT INTO {prefix}schema (version) VALUES (1);
