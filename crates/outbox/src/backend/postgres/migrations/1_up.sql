CREATE TABLE {prefix}queues (
    queue TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    partitions INTEGER NOT NULL,
    paused BOOLEAN NOT NULL DEFAULT FALSE
);

-- The partitions that an operator has paused: not a column of what is updated all the time or held for
-- as long as a handler takes.
CREATE TABLE {prefix}paused (partition_id BIGINT NOT NULL PRIMARY KEY);

-- What the sequencer knows of a partition. Everything visible in the snapshot `seen` has its number.
-- While a difference is larger than one step, `upto` is its upper end and `upto_id` how far it is
-- done. `cluster` tells a restored dump, whose transaction ids start anew, from the original.
CREATE TABLE {prefix}partitions (
    partition_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue TEXT COLLATE "C" NOT NULL,
    partition INTEGER NOT NULL,
    last_seq BIGINT NOT NULL DEFAULT 0,
    seen pg_snapshot NOT NULL DEFAULT '3:3:',
    upto pg_snapshot,
    upto_id BIGINT NOT NULL DEFAULT 0,
    cluster BIGINT,
    UNIQUE (queue, partition)
) WITH (fillfactor = 20);

-- Written once by the producer, deleted once by the vacuum, never updated. The identity's cache of 1
-- makes ids follow the order of insertion.
CREATE TABLE {prefix}messages (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    partition_id BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    payload_type TEXT NOT NULL,
    key TEXT,
    headers TEXT,
    payload BYTEA NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
CREATE INDEX {prefix}messages_by_partition ON {prefix}messages (partition_id, xid);

-- The order: numbers first_seq to last_seq are these messages.
CREATE TABLE {prefix}runs (
    partition_id BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    ids BIGINT[] NOT NULL,
    PRIMARY KEY (partition_id, last_seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE {prefix}processors (
    partition_id BIGINT NOT NULL PRIMARY KEY,
    queue TEXT COLLATE "C" NOT NULL,
    processed_seq BIGINT NOT NULL DEFAULT 0,
    attempts BIGINT NOT NULL DEFAULT 0,
    last_error TEXT,
    epoch BIGINT NOT NULL DEFAULT 0,
    renewals BIGINT NOT NULL DEFAULT 0,
    holder TEXT,
    lease_until BIGINT NOT NULL DEFAULT 0,
    lease_millis BIGINT NOT NULL DEFAULT 0,
    abandoned BOOLEAN NOT NULL DEFAULT FALSE
) WITH (fillfactor = 20);

-- Where the vacuum goes on, so that it never wades through what it has removed already.
CREATE TABLE {prefix}vacuum (
    partition_id BIGINT NOT NULL PRIMARY KEY,
    vacuumed_seq BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

CREATE TABLE {prefix}dead_letters (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    message_id BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    failed_at BIGINT NOT NULL,
    payload_type TEXT NOT NULL,
    key TEXT,
    headers TEXT,
    payload BYTEA NOT NULL,
    attempts BIGINT NOT NULL,
    last_error TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    claim_token TEXT,
    deadline BIGINT,
    completed_at BIGINT,
    requeued_as BIGINT,
    UNIQUE (partition_id, seq)
);

CREATE TABLE {prefix}processes (
    incarnation TEXT NOT NULL PRIMARY KEY,
    queues TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE {prefix}schema (version INTEGER NOT NULL PRIMARY KEY);
INSERT INTO {prefix}schema (version) VALUES (1);
