SELECT COUNT(*) FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = '{prefix}schema'
