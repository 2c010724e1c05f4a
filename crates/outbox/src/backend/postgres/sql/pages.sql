SELECT pg_relation_size('{prefix}messages') / current_setting('block_size')::bigint
