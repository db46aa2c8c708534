-- desk/touch_presence -- renew, end or look at the leases of an agent's connections, and publish the status.
--
-- KEYS   1 connections  zset    connections of the agent; score = end of the lease in ms
--        2 leases       zset    agents; score = end of the longest lease of a connection, in ms
--        3 agents       hash    capacity, status and so on of agents, by `<id>:<field>`
--        4 presence     string  the status, as published
-- ARGV   1 now_ms  2 agent  3 connection  4 until_ms  5 chosen  6 chosen_until_ms  7 active_ms  8 away_ms  9 ttl_s
-- REPLY  {'status', status, status before, end of the lease or '', chosen, chosen_until_ms}
--
-- Keeps: offline is the absence of a live lease and nothing else; a chosen status survives connections, and one
-- with an end is followed by online.
-- An empty connection renews nothing, an until_ms of 0 ends the connection.
local now_ms = tonumber(now_ms)
local before = redis.call('HMGET', agents, agent .. ':status', agent .. ':chosen', agent .. ':active_ms',
  agent .. ':chosen_until_ms')
if connection ~= '' then
  if until_ms == '0' then
    redis.call('ZREM', connections, connection)
  else
    redis.call('ZADD', connections, 'GT', until_ms, connection)
  end
end
redis.call('ZREMRANGEBYSCORE', connections, '-inf', string.format('%.0f', now_ms))
redis.call('EXPIRE', connections, ttl_s)
local longest = redis.call('ZREVRANGE', connections, 0, 0, 'WITHSCORES')
local lease = longest[2]
local picked, picked_until = chosen, chosen_until_ms
if picked == '' then picked, picked_until = before[2] or 'online', before[4] or '' end
if picked_until ~= '' and tonumber(picked_until) <= now_ms then picked, picked_until = 'online', '' end
local seen_ms = active_ms
if seen_ms == '' then seen_ms = before[3] or '' end
if seen_ms == '' then seen_ms = string.format('%.0f', now_ms) end
local status = picked
if not lease then
  status = 'offline'
  -- The moment it ended stays, for the grace that follows.
  if before[1] ~= 'offline' and redis.call('ZSCORE', leases, agent) then
    local ended = tonumber(redis.call('ZSCORE', leases, agent))
    if ended > now_ms then redis.call('ZADD', leases, string.format('%.0f', now_ms), agent) end
  end
else
  redis.call('ZADD', leases, lease, agent)
  if status == 'online' and tonumber(away_ms) > 0 and now_ms - tonumber(seen_ms) >= tonumber(away_ms) then
    status = 'away'
  end
end
redis.call('HSET', agents, agent .. ':status', status, agent .. ':active_ms', seen_ms)
-- After a loss the archive knows what was chosen; it is published with the agents.
if chosen ~= '' or before[2] then
  redis.call('HSET', agents, agent .. ':chosen', picked, agent .. ':chosen_until_ms', picked_until)
end
redis.call('SET', presence, status, 'EX', '1800')
return {'status', status, before[1] or 'offline', lease or '', picked, picked_until}
