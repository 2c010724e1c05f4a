/* {prefix}worker */
-- The highest id that is visible in any of the partitions: ids are handed out in one order for all.
SELECT MAX(id) INTO @outbox_highest FROM (?) AS of_each
