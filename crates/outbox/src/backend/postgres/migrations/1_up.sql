-- `partition_ids`, in the order of the partitions, are for {prefix}enqueue: here, where hardly anything
-- is ever updated, a producer finds them at once however long somebody keeps a transaction open.
CREATE TABLE {prefix}queues (
    queue TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    partitions INTEGER NOT NULL,
    partition_ids BIGINT[] NOT NULL DEFAULT '{}',
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
-- How many of a partition wait is asked all the time, and there may be many that do not wait any more.
CREATE INDEX {prefix}dead_letters_by_status ON {prefix}dead_letters (partition_id, status);
CREATE INDEX {prefix}dead_letters_by_age ON {prefix}dead_letters (status, id);

CREATE TABLE {prefix}processes (
    incarnation TEXT NOT NULL PRIMARY KEY,
    queues TEXT NOT NULL,
    host TEXT NOT NULL,
    version TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
) WITH (fillfactor = 50);

-- Who did what by hand, and why. The newest few thousand are kept.
CREATE TABLE {prefix}audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    reason TEXT NOT NULL
);

-- For producers in any language: what the library does when it enqueues, with the same checks.
CREATE FUNCTION {prefix}enqueue(
    queue TEXT, key TEXT, type TEXT, payload BYTEA, headers JSONB DEFAULT NULL
) RETURNS BIGINT LANGUAGE plpgsql AS $function$
DECLARE
    max_payload CONSTANT BIGINT :=
        COALESCE(NULLIF(CURRENT_SETTING('outbox.max_payload', TRUE), ''), '1048576');
    key_bytes CONSTANT BYTEA := CONVERT_TO(key, 'UTF8');
    -- A key's partition is the first 4 bytes, big-endian, of its SHA-256, modulo the number of partitions.
    -- What has no key goes anywhere.
    hash CONSTANT BIGINT := COALESCE(
        ('x' || ENCODE(SUBSTRING(SHA256(key_bytes) FOR 4), 'hex'))::bit(32)::bigint,
        FLOOR(RANDOM() * 4294967296::float8)::bigint
    );
    partition_id BIGINT;
    bad_header TEXT;
    message_id BIGINT;
BEGIN
    -- Types are exact, so that no operator of somebody who may create one here fits better.
    SELECT q.partition_ids[(1::bigint + hash % q.partitions::bigint)::integer] INTO partition_id
    FROM {prefix}queues q WHERE q.queue = {prefix}enqueue.queue;
    IF partition_id IS NULL THEN
        RAISE EXCEPTION 'queue "%" is not registered: there is %', LEFT(queue, 100), COALESCE((
            SELECT STRING_AGG('"' || known.queue || '"', ', ') FROM (
                SELECT q.queue FROM {prefix}queues q ORDER BY q.queue LIMIT 20
            ) AS known
        ), 'none yet')
        USING ERRCODE = 'undefined_object',
            HINT = 'A process that has it in its builder registers it; so does outbox enqueue --create.';
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'the payload is NULL, but an empty one is empty text'
        USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF OCTET_LENGTH(payload) > max_payload THEN
        RAISE EXCEPTION 'payload of % bytes is over the limit of % bytes',
            OCTET_LENGTH(payload), max_payload
        USING ERRCODE = 'program_limit_exceeded',
            HINT = 'The limit is the setting outbox.max_payload, of a session, an account or a database.';
    END IF;
    IF type IS NULL OR OCTET_LENGTH(type) NOT BETWEEN 1 AND 1024 OR type COLLATE "C" ~ '[^ -~]' THEN
        RAISE EXCEPTION 'invalid payload type "%": 1 to 1024 printable ASCII characters', LEFT(type, 100)
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF OCTET_LENGTH(key_bytes) > 1024 THEN
        RAISE EXCEPTION 'invalid key "%": at most 1024 bytes of text without NUL', LEFT(key, 100)
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF headers IS NOT NULL THEN
        IF JSONB_TYPEOF(headers) <> 'object' THEN
            RAISE EXCEPTION 'invalid headers %: a JSON object of text, like {"name": "value"}',
                LEFT(headers::text, 100)
            USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT header.name INTO bad_header
        FROM JSONB_EACH(headers) WITH ORDINALITY AS header (name, value, place)
        WHERE header.place > 64
           OR OCTET_LENGTH(header.name) NOT BETWEEN 1 AND 256
           OR header.name COLLATE "C" ~ '[^ -~]'
           OR JSONB_TYPEOF(header.value) <> 'string'
           OR OCTET_LENGTH(CONVERT_TO(header.value #>> '{}', 'UTF8')) > 8192
        LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'invalid header "%": names are 1 to 256 printable ASCII characters, each '
                'once; values at most 8192 bytes of text without NUL; at most 64 headers',
                LEFT(bad_header, 100)
            USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    INSERT INTO {prefix}messages (partition_id, created_at, payload_type, key, headers, payload)
    VALUES (partition_id, {now}, type, key, NULLIF(headers, '{}')::text, payload)
    RETURNING id INTO message_id;
    -- NOTIFY makes commits of all who use it wait for each other. So only one at a time does; what others
    -- commit meanwhile is found a little later.
    IF COALESCE(CURRENT_SETTING('outbox.signal', TRUE), '') <> 'off'
        AND PG_TRY_ADVISORY_XACT_LOCK(HASHTEXTEXTENDED('{prefix}wake'::text, 0::bigint))
    THEN
        PERFORM PG_NOTIFY('{prefix}wake', '');
    END IF;
    RETURN message_id;
END
$function$;

-- Text without a type is taken for this one: a literal, or what most drivers send.
CREATE FUNCTION {prefix}enqueue(
    queue TEXT, key TEXT, type TEXT, payload TEXT, headers JSONB DEFAULT NULL
) RETURNS BIGINT LANGUAGE plpgsql AS $function$
BEGIN
    RETURN {prefix}enqueue(queue, key, type, CONVERT_TO(payload, 'UTF8'), headers);
END
$function$;

-- They find their tables whatever the caller's search path is.
DO $do$
BEGIN
    EXECUTE FORMAT(
        'ALTER FUNCTION {prefix}enqueue(text, text, text, bytea, jsonb) SET search_path = %1$I, pg_temp; '
        'ALTER FUNCTION {prefix}enqueue(text, text, text, text, jsonb) SET search_path = %1$I, pg_temp',
        CURRENT_SCHEMA()
    );
END
$do$;

CREATE TABLE {prefix}schema (version INTEGER NOT NULL PRIMARY KEY);
INSERT INTO {prefix}schema (version) VALUES (1);
