-- desk/assign -- give waiting conversations to agents with room: most urgent first, each to the best agent.
-- uses: is_ready
--
-- KEYS   1 ready    hash  generation of the published state, and the sizes of its keys
--        2 active   zset  open conversations
--        3 unread   zset  conversations with unread messages
--        4 waiting  zset  conversations that need an agent; by urgency
--        5 due      zset  conversations whose agent must reply; score = deadline in ms
--        6 pending  hash  assignments that the archive does not have yet
--        7 agents   hash  capacity, status and so on of agents, by `<id>:<field>`
--        8 leases   zset  agents; score = end of the longest lease of a connection, in ms
--        9 ..group  hash, set  the states of the conversations, then the sets of the candidates
-- ARGV   1 now_ms  2 mode  3 first_reply_ms  4 ttl_s  5 offset  6 conversations  7 ..names
-- REPLY  {'assigned', generation, then conversation, agent, assign_no …} | {'moved'} | {'full'} | {'stale'}
--
-- Keeps: no capacity is exceeded; a conversation has at most one owner; none overtakes another of the
-- same team and skills. 'moved': the queue is no longer as the caller saw it.
local now_ms, count = tonumber(now_ms), tonumber(conversations)
if not is_ready() then return {'stale'} end
local ids, set_of, candidates = {}, {}, {}
local fields = {}
for at = 1, count do ids[at] = ARGV[names + at] end
for at = names + count + 1, #ARGV do
  local agent = ARGV[at]
  set_of[agent] = KEYS[group + at - names]
  candidates[#candidates + 1] = agent
  for _, field in ipairs({'capacity', 'status', 'last_ms', 'teams', 'skills', 'disabled'}) do
    fields[#fields + 1] = agent .. ':' .. field
  end
end
local queue = redis.call('ZREVRANGE', waiting, offset, tonumber(offset) + count - 1)
if #queue ~= count then return {'moved'} end
for at = 1, count do
  if queue[at] ~= ids[at] then return {'moved'} end
end
if #candidates == 0 then return {'full'} end
local spread = unpack or table.unpack -- bounded: six fields of at most 256 agents
local known = redis.call('HMGET', agents, spread(fields))
local free = {}
for at, agent in ipairs(candidates) do
  local base = (at - 1) * 6
  local capacity = tonumber(known[base + 1] or '')
  local lease = redis.call('ZSCORE', leases, agent)
  if capacity and known[base + 2] == 'online' and known[base + 6] ~= '1' and lease and tonumber(lease) > now_ms then
    local load = redis.call('SCARD', set_of[agent])
    if load ~= tonumber(redis.call('HGET', ready, 'load:' .. agent) or 0) then return {'stale'} end
    if load < capacity then
      free[#free + 1] = {agent = agent, capacity = capacity, load = load, last_ms = tonumber(known[base + 3] or '') or 0,
        teams = known[base + 4] or '', skills = known[base + 5] or ''}
    end
  end
end
if #free == 0 then return {'full'} end

local function has_all(given, wanted)
  for word in string.gmatch(wanted, '[^,]+') do
    if not string.find(',' .. given .. ',', ',' .. word .. ',', 1, true) then return false end
  end
  return true
end
local function is_better(one, other)
  if mode ~= 'round_robin' then
    local left, right = one.load * other.capacity, other.load * one.capacity
    if left ~= right then return left < right end
  end
  if one.last_ms ~= other.last_ms then return one.last_ms < other.last_ms end
  return one.agent < other.agent
end

local generation = redis.call('HGET', ready, 'generation')
local reply = {'assigned', generation}
for at, id in ipairs(ids) do
  local state = KEYS[group + at]
  local stored = redis.call('HMGET', state, 'assignee', 'team', 'skills', 'last_agent', 'missed', 'waiting_ms')
  local best
  if (stored[1] or '') == '' then
    for _, one in ipairs(free) do
      local fits = one.load < one.capacity and has_all(one.teams, stored[2] or '') and has_all(one.skills, stored[3] or '')
        and not string.find(',' .. (stored[5] or '') .. ',', ',' .. one.agent .. ',', 1, true)
      if fits then
        if mode == 'sticky' and one.agent == stored[4] then
          best = one
          break
        end
        if not best or is_better(one, best) then best = one end
      end
    end
  end
  if best then
    local assign_no = string.format('%.0f', redis.call('HINCRBY', state, 'assign_no', 1))
    -- Several in one millisecond: the order counts for round robin.
    best.load, best.last_ms = best.load + 1, math.max(now_ms, best.last_ms + 1)
    redis.call('HSET', state, 'assignee', best.agent)
    redis.call('ZREM', waiting, id)
    redis.call('SADD', set_of[best.agent], id)
    redis.call('EXPIRE', set_of[best.agent], ttl_s)
    redis.call('HSET', ready, 'load:' .. best.agent, redis.call('SCARD', set_of[best.agent]))
    redis.call('HSET', agents, best.agent .. ':last_ms', string.format('%.0f', best.last_ms))
    if tonumber(first_reply_ms) > 0 and (stored[6] or '') ~= '' then
      redis.call('ZADD', due, string.format('%.0f', now_ms + tonumber(first_reply_ms)), id)
    end
    redis.call('HSET', pending, id, table.concat({generation, assign_no, best.agent, 'automatic',
      string.format('%.0f', now_ms), '', ''}, '|'))
    reply[#reply + 1] = id
    reply[#reply + 1] = best.agent
    reply[#reply + 1] = assign_no
  end
end
return reply
