-- jobs/reindex -- makes the entries of lanes true, or clears lanes.
-- uses: rank
--
-- KEYS   1 ..keys  of each entry: lane, and the lanes that hold jobs of its pool and of its type
-- ARGV   1 mode  2 ..members
-- REPLY  {'reindexed', how many lanes hold jobs}
--
-- Modes: 'true' lists a lane by its first job, and takes it off when it has none; 'clear' empties it
-- and takes it off.
--
-- Keeps: a lane that is listed holds jobs, and no job is lost: it is in line whatever its lane says.
local held = 0
for n = 1, #ARGV - members do
  local member, key = ARGV[members + n], keys + 3 * (n - 1)
  if mode == 'clear' then redis.call('DEL', KEYS[key + 1]) end
  local first = redis.call('LINDEX', KEYS[key + 1], '0')
  if first then
    local score = rank(string.match(member, '^%w+ (%d+)'), first)
    redis.call('ZADD', KEYS[key + 2], score, member)
    redis.call('ZADD', KEYS[key + 3], score, member)
    held = held + 1
  else
    redis.call('ZREM', KEYS[key + 2], member)
    redis.call('ZREM', KEYS[key + 3], member)
  end
end
return { 'reindexed', held }
