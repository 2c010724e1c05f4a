SELECT {now} AS now_millis, (SELECT journal_mode FROM pragma_journal_mode) AS journal_mode,
       (SELECT file FROM pragma_database_list WHERE name = 'main') AS file
