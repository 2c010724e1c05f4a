-- 3 is the oldest transaction id there can be: in no cluster will it ever look new.
UPDATE {prefix}messages SET xid = '3' WHERE xid <> '3'
