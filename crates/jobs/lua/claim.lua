--!df flags=allow-undeclared-keys
-- jobs/claim -- hands the next jobs of a worker to it, each under a lock and a lease.
--
-- KEYS   1 waiting  list    ids in line, as v1 knows them; the truth about who waits
--        2 active   set     ids that run
--        3 paused   set     types that must not start
--        4 index    hash    marks of the line, masks of the routes, the latest claim per worker
--        5 strays   list    ids in line that have no lane yet
--        6 claims   hash    id -> 'token worker type' of who runs it
--        7 leases   zset    ids that run; score = lease_until_ms
--        8 blocked  set     types that somebody wanted while they were at their limit
--        9 events   stream  what happened
-- ARGV   1 now_ms  2 server  3 request  4 most  5 lock_ttl_s  6 lease_until_ms  7 prefix
--        8 events_max  9 ..routes
--        of each route: rid, type, max_concurrent or '', max_per_minute or ''
-- REPLY  {'claimed' or 'empty', version, server version, strays, wait_ms or -1, more,
--         id, token, data, id, token, data, ...}
--
-- Undeclared keys: which jobs come is only known here, so their data, lock and status, the lanes
-- and the counters of their types are spelled from the prefix; all share its hash tag.
--
-- Keeps: an id taken is out of waiting and in active, claims and leases, locked, with status
-- active; one request takes jobs once, a repeated one gets the same jobs again. The highest
-- priority goes first, within one the longest waiting. Work is bounded by `most` and the number of
-- routes, not by what waits for others.
local now, server, request = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local most, ttl, until_ms, prefix = tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]
local waiting = KEYS[1]
local DATA, LOCK, STATUS = prefix .. 'jobs:data:', prefix .. 'jobs:lock:', prefix .. 'jobs:status:'
local LANE, RUNNING = prefix .. 'jobs:lane:', prefix .. 'ratelimit:concurrent:'
local STARTS, MINUTE = prefix .. 'jobs:starts:', prefix .. 'ratelimit:minute:'

local want = { 'v:', 'v:' .. server, 'r:' .. server, 'fence' }
local routes = (#ARGV - 8) / 4
for i = 1, routes do want[4 + i] = 'm:' .. ARGV[5 + 4 * i] end
local s = line_open(waiting, KEYS[4], KEYS[5], now, want)
local reply = { 'empty', tonumber(s.more[1]) or 0, tonumber(s.more[2]) or 0,
  redis.call('LLEN', KEYS[5]), -1, 0 }

-- The same request again: its reply got lost, the jobs are taken.
local before = s.more[3]
if before and string.sub(before, 1, #request + 1) == request .. '\n' then
  local token = nil
  for word in string.gmatch(string.sub(before, #request + 2), '[^\n]+') do
    if not token then
      token = tonumber(word)
    else
      local claim = redis.call('HGET', KEYS[6], word)
      local mine = token .. ' ' .. server .. ' '
      if claim and string.sub(claim, 1, #mine) == mine then
        reply[1] = 'claimed'
        reply[#reply + 1] = word
        reply[#reply + 1] = token
        reply[#reply + 1] = redis.call('GET', DATA .. word)
      end
      token = token + 1
    end
  end
  line_close(s)
  return reply
end

-- Which lanes have jobs, by priority.
local levels, types, any = {}, {}, false
for i = 1, routes do
  local mask = tonumber(s.more[4 + i]) or 0
  if mask > 0 then
    any = true
    types[#types + 1] = ARGV[6 + 4 * i]
    for p = 10, 1, -1 do
      if mask >= weight(p) then
        mask = mask - weight(p)
        if not levels[p] then levels[p] = {} end
        table.insert(levels[p], i)
      end
    end
  end
end
local shut = {}
if any and redis.call('SCARD', KEYS[3]) > 0 then
  local is = redis.call('SMISMEMBER', KEYS[3], spread(types))
  for i = 1, #types do
    if is[i] == 1 then shut[types[i]] = true end
  end
end

-- May one more job of this route start? Counters are read once and kept up as jobs are taken.
local running, started, full = {}, {}, {}
local function wait_at_most(ms)
  if reply[5] < 0 or ms < reply[5] then reply[5] = ms end
end
local function may_start(i)
  local kind, concurrent, minute = ARGV[6 + 4 * i], ARGV[7 + 4 * i], ARGV[8 + 4 * i]
  if shut[kind] then return false end
  if concurrent ~= '' then
    if not running[kind] then running[kind] = tonumber(redis.call('GET', RUNNING .. kind) or 0) end
    if running[kind] + (started[kind] or 0) >= tonumber(concurrent) then
      full[kind] = true
      return false
    end
  end
  if minute ~= '' then
    local nth = tonumber(minute) - 1 - (started[kind] or 0)
    if nth < 0 then
      wait_at_most(60000)
      return false
    end
    local then_ms = tonumber(redis.call('LINDEX', STARTS .. kind, nth) or 0)
    if then_ms > now - 60000 then
      wait_at_most(then_ms + 60000 - now)
      return false
    end
  end
  return true
end

local taken, kinds, minutes = {}, {}, {}    -- ids, their types, types with a limit per minute
local window, place, out, out_to = nil, {}, {}, 0
local masks, looked_at, bound = {}, 0, 4 * most + 64

-- Locks a candidate and takes it out of line. Answers 'taken', 'locked' or 'gone'.
local function take(id, seq, status)
  if not window then
    window = redis.call('LRANGE', waiting, 0, most + 31)
    for at = #window, 1, -1 do place[window[at]] = at end
  end
  local at = place[id]
  if at and not out[at] then
    if not redis.call('SET', LOCK .. id, server, 'NX', 'EX', ttl) then return 'locked' end
    out[at] = true
    if at > out_to then out_to = at end
    return 'taken'
  end
  if status == nil then status = redis.call('GET', STATUS .. id) end
  if redis.call('EXISTS', LOCK .. id) == 1 then
    return status == 'active' and 'gone' or 'locked'
  end
  -- A lane may still name a job that others took; only what is in line is taken.
  local ended = status == 'completed' or status == 'dead' or status == 'failed' or status == 'active'
  if not line_take(s, id, seq - s.base, not ended) then return 'gone' end
  redis.call('SET', LOCK .. id, server, 'EX', ttl)
  return 'taken'
end

for p = 10, 1, -1 do
  local lanes = {}
  for _, i in ipairs(levels[p] or {}) do
    if #taken < most and looked_at < bound and may_start(i) then
      local key = LANE .. ARGV[5 + 4 * i] .. ':' .. p
      local list = redis.call('LRANGE', key, 0, 2 * (most - #taken) + 1)
      lanes[#lanes + 1] = { i = i, key = key, list = list, at = 1, back = {} }
    end
  end
  while #taken < most and looked_at < bound do
    -- The lane whose first entry waits the longest.
    local lane, oldest = nil, nil
    for n = 1, #lanes do
      local head = tonumber(lanes[n].list[lanes[n].at])
      if head and not lanes[n].stop and (not oldest or head < oldest) then
        lane, oldest = lanes[n], head
      end
    end
    if not lane then break end
    local kind = ARGV[6 + 4 * lane.i]
    if may_start(lane.i) then
      local id = lane.list[lane.at + 1]
      local outcome = take(id, oldest)
      looked_at = looked_at + 1
      lane.at = lane.at + 2
      if outcome == 'taken' then
        taken[#taken + 1], kinds[#kinds + 1] = id, kind
        started[kind] = (started[kind] or 0) + 1
        if ARGV[8 + 4 * lane.i] ~= '' then minutes[kind] = (minutes[kind] or 0) + 1 end
      elseif outcome == 'locked' then
        -- Somebody holds its lock without running it; it goes to the end and is tried again.
        lane.back[#lane.back + 1] = oldest
        lane.back[#lane.back + 1] = id
      end
      if lane.at > #lane.list and #lane.list > 0 and #taken < most and looked_at < bound then
        redis.call('LTRIM', lane.key, lane.at - 1, -1)
        lane.list = redis.call('LRANGE', lane.key, 0, 2 * (most - #taken) + 1)
        lane.at = 1
      end
    else
      lane.stop = true
    end
  end
  for n = 1, #lanes do
    local lane = lanes[n]
    if lane.at > 1 then redis.call('LTRIM', lane.key, lane.at - 1, -1) end
    if #lane.back > 0 then
      redis.call('RPUSH', lane.key, spread(lane.back))
      wait_at_most(250)
    elseif lane.at > #lane.list and redis.call('EXISTS', lane.key) == 0 then
      local rid = ARGV[5 + 4 * lane.i]
      local mask = masks[rid] or tonumber(s.more[4 + lane.i])
      masks[rid] = mask - weight(p)
    end
  end
end
if #taken == most or looked_at >= bound then reply[6] = 1 end

-- Takes what was found at the head out of the list in one go, and puts back what was not wanted.
if out_to > 0 then
  local keep = {}
  for at = out_to, 1, -1 do
    if not out[at] then keep[#keep + 1] = window[at] end
  end
  redis.call('LPOP', waiting, out_to)
  if #keep > 0 then redis.call('LPUSH', waiting, spread(keep)) end
  s.base = s.base + out_to - #keep
  if not s.clean then
    for at = 1, out_to do
      if out[at] and at <= s.at + 1 then s.at = s.at - 1 end
    end
  end
  s.moved = true
end

for rid, mask in pairs(masks) do
  s.set[#s.set + 1] = 'm:' .. rid
  s.set[#s.set + 1] = mask
end
for kind in pairs(full) do redis.call('SADD', KEYS[8], kind) end

if #taken > 0 then
  local keys = {}
  for i = 1, #taken do keys[i] = DATA .. taken[i] end
  local data = redis.call('MGET', spread(keys))
  local token = tonumber(s.more[4]) or 0
  local first = token + 1
  local ids, statuses, claims, leases, counts = {}, {}, {}, {}, {}
  for i = 1, #taken do
    local id, kind = taken[i], kinds[i]
    if data[i] then
      token = token + 1
      ids[#ids + 1] = id
      statuses[#statuses + 1] = STATUS .. id
      statuses[#statuses + 1] = 'active'
      claims[#claims + 1] = id
      claims[#claims + 1] = token .. ' ' .. server .. ' ' .. kind
      leases[#leases + 1] = until_ms
      leases[#leases + 1] = id
      counts[kind] = (counts[kind] or 0) + 1
      reply[#reply + 1] = id
      reply[#reply + 1] = token
      reply[#reply + 1] = data[i]
    else
      -- The job was deleted; only its name was still in line.
      redis.call('DEL', LOCK .. id)
    end
  end
  if #ids > 0 then
    reply[1] = 'claimed'
    redis.call('MSET', spread(statuses))
    redis.call('SADD', KEYS[2], spread(ids))
    redis.call('HSET', KEYS[6], spread(claims))
    redis.call('ZADD', KEYS[7], spread(leases))
    for kind, count in pairs(counts) do redis.call('INCRBY', RUNNING .. kind, count) end
    for kind, count in pairs(minutes) do
      for _ = 1, count do
        redis.call('LPUSH', STARTS .. kind, now)
        for _ = 1, 2 do
          local oldest = tonumber(redis.call('LINDEX', STARTS .. kind, -1))
          if oldest > now - 60000 then break end
          redis.call('RPOP', STARTS .. kind)
        end
      end
      redis.call('EXPIRE', STARTS .. kind, 120)
      if redis.call('INCRBY', MINUTE .. kind, count) == count then
        redis.call('EXPIRE', MINUTE .. kind, 60)
      end
    end
    s.set[#s.set + 1] = 'fence'
    s.set[#s.set + 1] = token
    s.set[#s.set + 1] = 'r:' .. server
    s.set[#s.set + 1] = request .. '\n' .. first .. '\n' .. table.concat(ids, '\n')
    emit(KEYS[9], ARGV[8], 'started', now, ids, server)
  end
end
line_close(s)
return reply
