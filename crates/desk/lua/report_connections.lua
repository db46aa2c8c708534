-- desk/report_connections -- take the connections of one instance, publish the sum over live instances.
--
-- KEYS   1 instances  hash    per instance: connections and end of its lease in ms, with a space between
--        2 current    string  connections of all live instances
--        3 max        string  the most there were since the first of the live instances started
-- ARGV   1 now_ms  2 instance  3 connections  4 until_ms
-- REPLY  {'reported', current, max}
--
-- Keeps: an instance counts until its lease ends, whatever became of it. `max` starts again when no
-- instance was alive. Loops over instances, which are few; those that are gone are removed.
local now_ms, connections = tonumber(now_ms), tonumber(connections)
local stored = redis.call('HGETALL', instances)
local sum, live = connections, 0
for index = 1, #stored, 2 do
  local count, end_ms = string.match(stored[index + 1], '^(%d+) (%d+)$')
  if not count or tonumber(end_ms) <= now_ms then
    redis.call('HDEL', instances, stored[index])
  else
    live = live + 1
    if stored[index] ~= instance then sum = sum + tonumber(count) end
  end
end
local most = live > 0 and tonumber(redis.call('GET', max) or '') or 0
most = math.max(most, sum)
redis.call('HSET', instances, instance, string.format('%.0f', connections) .. ' ' .. until_ms)
redis.call('SET', current, string.format('%.0f', sum))
redis.call('SET', max, string.format('%.0f', most))
return {'reported', math.floor(sum), math.floor(most)}
