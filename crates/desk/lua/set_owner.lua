-- desk/set_owner -- give a conversation to an agent, or take it away, by compare-and-set.
-- uses: is_ready
--
-- KEYS   1 ready    hash  generation of the published state, and the sizes of its keys
--        2 state    hash  the conversation
--        3 active   zset  open conversations
--        4 unread   zset  conversations with unread messages
--        5 waiting  zset  conversations that need an agent; by urgency
--        6 due      zset  conversations whose agent must reply; score = deadline in ms
--        7 pending  hash  assignments that the archive does not have yet
--        8 agents   hash  capacity, status and so on of agents, by `<id>:<field>`
--        9 leases   zset  agents; score = end of the longest lease of a connection, in ms
--        10 from    set   conversations of the owner so far
--        11 to      set   conversations of the new owner
-- ARGV   1 now_ms  2 id  3 owner  4 agent  5 reason  6 is_forced  7 needs_lease  8 first_reply_ms  9 missed  10 ttl_s  11 only_waiting  12 by
-- REPLY  {'set', generation, assign_no} | {'same'} | {'owner', owner} | {'full'} | {'offline'} | {'answered'} | {'gone'} | {'stale'}
--
-- Keeps: a conversation has at most one owner, and is in the set of its owner and no other; an agent's
-- capacity is not exceeded unless forced.
local now_ms = tonumber(now_ms)
if not is_ready() then return {'stale'} end
local stored = redis.call('HMGET', state, 'assignee', 'status', 'queue_score', 'waiting_ms', 'missed')
if not stored[2] or stored[2] == 'resolved' then return {'gone'} end
local assignee = stored[1] or ''
if assignee ~= owner then return {'owner', assignee} end
if assignee == agent then return {'same'} end
if only_waiting == '1' and (stored[4] or '') == '' then return {'answered'} end
if owner ~= '' and redis.call('SCARD', from) ~= tonumber(redis.call('HGET', ready, 'load:' .. owner) or 0) then return {'stale'} end
if agent ~= '' then
  local load = redis.call('SCARD', to)
  if load ~= tonumber(redis.call('HGET', ready, 'load:' .. agent) or 0) then return {'stale'} end
  local known = redis.call('HMGET', agents, agent .. ':capacity', agent .. ':disabled')
  if not known[1] or known[2] == '1' then return {'offline'} end
  if needs_lease == '1' then
    local lease = redis.call('ZSCORE', leases, agent)
    if not lease or tonumber(lease) <= now_ms then return {'offline'} end
  end
  if is_forced ~= '1' and load >= tonumber(known[1]) then return {'full'} end
end

local assign_no = redis.call('HINCRBY', state, 'assign_no', 1)
if owner ~= '' then
  redis.call('SREM', from, id)
  redis.call('HSET', ready, 'load:' .. owner, redis.call('SCARD', from))
end
if missed ~= '' then redis.call('HSET', state, 'missed', (stored[5] or '') .. missed .. ',') end
redis.call('HSET', state, 'assignee', agent)
redis.call('ZREM', due, id)
if agent == '' then
  if (stored[3] or '') ~= '' then redis.call('ZADD', waiting, stored[3], id) end
else
  redis.call('ZREM', waiting, id)
  redis.call('SADD', to, id)
  redis.call('EXPIRE', to, ttl_s)
  redis.call('HSET', ready, 'load:' .. agent, redis.call('SCARD', to))
  redis.call('HSET', agents, agent .. ':last_ms', string.format('%.0f', now_ms))
  if tonumber(first_reply_ms) > 0 and (stored[4] or '') ~= '' then
    redis.call('ZADD', due, string.format('%.0f', now_ms + tonumber(first_reply_ms)), id)
  end
end
local generation = redis.call('HGET', ready, 'generation')
redis.call('HSET', pending, id, table.concat({generation, string.format('%.0f', assign_no), agent, reason,
  string.format('%.0f', now_ms), owner, by}, '|'))
return {'set', generation, string.format('%.0f', assign_no)}
