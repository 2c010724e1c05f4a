/* {prefix}worker */
INSERT INTO {prefix}runs (partition_id, first_seq, last_seq, width, ids, sizes)
VALUES (?, ?, ?, ?, '?', '?')
