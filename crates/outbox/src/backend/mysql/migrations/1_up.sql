-- DDL commits by itself here: every statement can run again, so a migration that was cut short is
-- finished by the next one. No foreign keys: they would lock what producers and sequencers share.
CREATE TABLE IF NOT EXISTS {prefix}queues (
    queue VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    partitions INT NOT NULL,
    paused BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (queue)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {prefix}partitions (
    partition_id BIGINT NOT NULL AUTO_INCREMENT,
    queue VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `partition` INT NOT NULL,
    paused BOOLEAN NOT NULL DEFAULT FALSE,
    last_seq BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id),
    UNIQUE KEY (queue, `partition`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Written once by the producer, deleted once by the vacuum, never updated.
CREATE TABLE IF NOT EXISTS {prefix}messages (
    id BIGINT NOT NULL AUTO_INCREMENT,
    partition_id BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    payload_type VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key` VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    headers MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A marker per message that has no number yet: written with the message, deleted by the sequencer.
-- `size` is its payload's, in bytes.
CREATE TABLE IF NOT EXISTS {prefix}incoming (
    partition_id BIGINT NOT NULL,
    id BIGINT NOT NULL,
    size BIGINT NOT NULL,
    PRIMARY KEY (partition_id, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The order: numbers first_seq to last_seq are these messages, and their sizes, so that whoever reads
-- knows how many payloads to ask for. `ids` and `sizes` have `width` characters for each message, the
-- last of which is a comma: a slice can be cut out by place.
CREATE TABLE IF NOT EXISTS {prefix}runs (
    partition_id BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    width INT NOT NULL,
    ids LONGTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sizes LONGTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (partition_id, first_seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {prefix}processors (
    partition_id BIGINT NOT NULL,
    processed_seq BIGINT NOT NULL DEFAULT 0,
    attempts BIGINT NOT NULL DEFAULT 0,
    last_error MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    epoch BIGINT NOT NULL DEFAULT 0,
    renewals BIGINT NOT NULL DEFAULT 0,
    holder VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin,
    lease_until BIGINT NOT NULL DEFAULT 0,
    lease_millis BIGINT NOT NULL DEFAULT 0,
    abandoned BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Where the vacuum goes on, so that it never wades through what it has removed already.
CREATE TABLE IF NOT EXISTS {prefix}vacuum (
    partition_id BIGINT NOT NULL,
    vacuumed_seq BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {prefix}dead_letters (
    id BIGINT NOT NULL AUTO_INCREMENT,
    partition_id BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    message_id BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    failed_at BIGINT NOT NULL,
    payload_type VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key` VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    headers MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    payload LONGBLOB NOT NULL,
    attempts BIGINT NOT NULL,
    last_error MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    status VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'pending',
    claim_token VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin,
    deadline BIGINT,
    completed_at BIGINT,
    requeued_as BIGINT,
    PRIMARY KEY (id),
    UNIQUE KEY (partition_id, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {prefix}processes (
    incarnation VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queues MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (incarnation)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Last: whoever finds the version finds everything else.
CREATE TABLE IF NOT EXISTS {prefix}schema (
    version INT NOT NULL,
    PRIMARY KEY (version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT INTO {prefix}schema (version) VALUES (1) ON DUPLICATE KEY UPDATE version = 1;
