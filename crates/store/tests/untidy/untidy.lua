-- test/untidy -- breaks the rules about names.
-- uses: helper, missing,
--       other
--
-- KEYS   1 key  string  a key
-- ARGV   1 now_ms
-- REPLY  what was found
local seen, key = helper(now_ms), 1
return redis.call('GET', kye) or ARGV[1] or seen
