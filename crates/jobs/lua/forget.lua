-- jobs/forget -- takes routes out of the registry that no job in line has.
--
-- KEYS   1 index   hash  masks of the routes
--        2 ..keys        registry and ten lanes per route
-- ARGV   1 ..rest
--        of each route: rid, server
-- REPLY  {'forgotten', how many}
--
-- Keeps: a route with a job in a lane stays; the next dispatch brings back what was forgotten.
local forgotten = 0
for j = 1, #ARGV / 2 do
  local rid, server, key = ARGV[2 * j - 1], ARGV[2 * j], 1 + 11 * (j - 1)
  local lanes = {}
  for p = 1, 10 do lanes[p] = KEYS[key + 1 + p] end
  if chunked('EXISTS', nil, lanes) == 0 then
    redis.call('HDEL', KEYS[key + 1], rid)
    redis.call('HDEL', KEYS[1], 'm:' .. rid)
    if server ~= '' and redis.call('EXISTS', KEYS[key + 1]) == 0 then
      redis.call('HDEL', KEYS[1], 'v:' .. server)
    else
      redis.call('HINCRBY', KEYS[1], 'v:' .. server, 1)
    end
    forgotten = forgotten + 1
  end
end
return { 'forgotten', forgotten }
