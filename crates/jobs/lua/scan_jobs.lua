-- jobs/scan_jobs -- looks for stored jobs, a few keys further each time.
--
-- KEYS   1 waiting  list  waiting ids; where it lives, all keys of the namespace live
-- ARGV   1 cursor  2 pattern  3 count
-- REPLY  {'scanned', next cursor, keys}
--
-- A script because in a cluster a command without keys may go to any server; this one goes where
-- the namespace is.
--
-- Keeps: nothing is changed.
local found = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
return { 'scanned', found[1], found[2] }
