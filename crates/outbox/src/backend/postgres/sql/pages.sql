SELECT pg_relation_size('{prefix}messages') / current_setting('block_size')::bigint AS pages,
       NOT EXISTS (SELECT 1 FROM {prefix}messages) AS is_empty
