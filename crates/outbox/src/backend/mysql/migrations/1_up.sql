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
    UNIQUE KEY (partition_id, seq),
    -- How many of a partition wait is asked all the time, and there may be many that do not wait any more.
    KEY (partition_id, status),
    KEY (status, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {prefix}processes (
    incarnation VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    queues MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    host VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    version VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (incarnation)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Who did what by hand, and why. The newest few thousand are kept.
CREATE TABLE IF NOT EXISTS {prefix}audit (
    id BIGINT NOT NULL AUTO_INCREMENT,
    at BIGINT NOT NULL,
    actor MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    action VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    target MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- For producers in any language: what the library does when it enqueues, with the same checks. It answers
-- the message's id.
DROP PROCEDURE IF EXISTS {prefix}enqueue;
DELIMITER //
CREATE PROCEDURE {prefix}enqueue(
    IN given_queue LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN given_key LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN given_type LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN given_payload LONGBLOB,
    IN given_headers LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
)
SQL SECURITY INVOKER
BEGIN
    DECLARE max_payload BIGINT DEFAULT COALESCE(@outbox_max_payload, 1048576);
    DECLARE known_queue VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE highest_partition, hash, found_partition_id, message_id BIGINT;
    DECLARE header_count, header_place INT DEFAULT 0;
    DECLARE header_names, header_values, header_name, header_value
        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE is_alone BOOLEAN DEFAULT FALSE;
    -- An error has room for so much.
    DECLARE refusal VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

    -- What cannot be a name is not looked for: spaces at the end, for one, do not count in comparisons.
    IF OCTET_LENGTH(given_queue) <= 1024 AND given_queue NOT REGEXP '[^!-~]' THEN
        SET known_queue = given_queue;
    END IF;
    -- Only the index of queues and partitions is read: the strictest transactions lock what they read, and
    -- sequencers need the rows.
    SELECT MAX(p.`partition`) INTO highest_partition
    FROM {prefix}partitions p FORCE INDEX (queue) WHERE p.queue = known_queue;
    IF highest_partition IS NULL THEN
        SET refusal = LEFT(CONCAT(
            'queue "', LEFT(COALESCE(given_queue, 'NULL'), 30), '" is not registered: there is ',
            COALESCE((SELECT GROUP_CONCAT(DISTINCT p.queue ORDER BY p.queue SEPARATOR ', ')
                      FROM {prefix}partitions p FORCE INDEX (queue)), 'none yet')
        ), 128);
        SIGNAL SQLSTATE '42704' SET MESSAGE_TEXT = refusal;
    END IF;
    IF given_payload IS NULL THEN
        SIGNAL SQLSTATE '22004' SET MESSAGE_TEXT = 'the payload is NULL, but an empty one is empty text';
    END IF;
    IF OCTET_LENGTH(given_payload) > max_payload THEN
        SET refusal = CONCAT('payload of ', OCTET_LENGTH(given_payload), ' bytes is over the limit of ',
            max_payload, ' bytes: SET @outbox_max_payload changes it');
        SIGNAL SQLSTATE '54000' SET MESSAGE_TEXT = refusal;
    END IF;
    IF COALESCE(given_type, '') = '' OR OCTET_LENGTH(given_type) > 1024 OR given_type REGEXP '[^ -~]' THEN
        SET refusal = CONCAT('invalid payload type "', LEFT(COALESCE(given_type, 'NULL'), 50),
            '": 1 to 1024 printable ASCII characters');
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = refusal;
    END IF;
    IF OCTET_LENGTH(given_key) > 1024 OR LOCATE(CHAR(0 USING utf8mb4), given_key) > 0 THEN
        SET refusal = CONCAT('invalid key "', REPLACE(LEFT(given_key, 50), CHAR(0 USING utf8mb4), '?'),
            '": at most 1024 bytes of text without NUL');
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = refusal;
    END IF;
    IF given_headers IS NOT NULL THEN
        IF NOT JSON_VALID(given_headers) OR JSON_TYPE(given_headers) <> 'OBJECT' THEN
            SET refusal = CONCAT('invalid headers ', LEFT(given_headers, 50),
                ': a JSON object of text, like {"name": "value"}');
            SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = refusal;
        END IF;
        SET header_count = JSON_LENGTH(given_headers), header_names = JSON_KEYS(given_headers),
            header_values = JSON_EXTRACT(given_headers, '$.*');
        WHILE header_place < header_count DO
            SET header_value = JSON_EXTRACT(header_values, CONCAT('$[', header_place, ']')),
                header_name = JSON_UNQUOTE(JSON_EXTRACT(header_names, CONCAT('$[', header_place, ']')));
            IF header_place >= 64 OR COALESCE(header_name, '') = '' OR OCTET_LENGTH(header_name) > 256
                OR header_name REGEXP '[^ -~]' OR JSON_TYPE(header_value) <> 'STRING'
                OR OCTET_LENGTH(JSON_UNQUOTE(header_value)) > 8192
                OR LOCATE(CHAR(0 USING utf8mb4), JSON_UNQUOTE(header_value)) > 0
            THEN
                SET refusal = LEFT(CONCAT('invalid header "', LEFT(COALESCE(header_name, ''), 25),
                    '": names 1 to 256 printable ASCII, each once; text of at most 8192 bytes, ',
                    'no NUL; at most 64'), 128);
                SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = refusal;
            END IF;
            SET header_place = header_place + 1;
        END WHILE;
    END IF;

    -- A key's partition is the first 4 bytes, big-endian, of its SHA-256, modulo the number of partitions.
    -- What has no key goes anywhere.
    SET hash = COALESCE(CONV(LEFT(SHA2(given_key, 256), 8), 16, 10), FLOOR(RAND() * 4294967296));
    SELECT p.partition_id INTO found_partition_id FROM {prefix}partitions p FORCE INDEX (queue)
    WHERE p.queue = known_queue AND p.`partition` = hash MOD (highest_partition + 1);

    -- A message without its marker is none: who has no transaction needs one. A savepoint that is set
    -- outside of any is gone at once.
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_alone = TRUE;
        SAVEPOINT {prefix}enqueue;
        RELEASE SAVEPOINT {prefix}enqueue;
    END;
    BEGIN
        DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
            -- A deadlock has undone everything already, the savepoint too.
            DECLARE CONTINUE HANDLER FOR 1305 BEGIN END;
            IF is_alone THEN ROLLBACK; ELSE ROLLBACK TO SAVEPOINT {prefix}enqueue; END IF;
            RESIGNAL;
        END;
        IF is_alone THEN START TRANSACTION; ELSE SAVEPOINT {prefix}enqueue; END IF;
        INSERT INTO {prefix}messages (partition_id, created_at, payload_type, `key`, headers, payload)
        VALUES (found_partition_id, {now}, given_type, given_key,
            IF(header_count > 0, JSON_MERGE_PATCH('{}', given_headers), NULL), given_payload);
        SET message_id = LAST_INSERT_ID();
        INSERT INTO {prefix}incoming (partition_id, id, size)
        VALUES (found_partition_id, message_id, OCTET_LENGTH(given_payload));
        IF is_alone THEN COMMIT; ELSE RELEASE SAVEPOINT {prefix}enqueue; END IF;
    END;
    SELECT message_id AS id;
END//
DELIMITER ;

-- Last: whoever finds the version finds everything else.
CREATE TABLE IF NOT EXISTS {prefix}schema (
    version INT NOT NULL,
    PRIMARY KEY (version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT INTO {prefix}schema (version) VALUES (1) ON DUPLICATE KEY UPDATE version = 1;
