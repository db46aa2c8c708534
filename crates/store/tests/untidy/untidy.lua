-- test/untidy -- breaks the rules about names.
-- uses: helper, missing,
--       other
--
-- KEYS   1 key  string  a key
-- ARGV   1 now_ms
-- REPLY  what was found
local seen = helper(now_ms)
return redis.call('GET', kye) or ARGV[1] or seen
