--!df flags=allow-undeclared-keys
-- jobs/claim -- hands the next jobs of a worker to it, each under a lock and a lease, after writing
-- the results of those that it has done.
--
-- KEYS   1 waiting  list    ids in line, as v1 knows them; the truth about who waits
--        2 active   set     ids that run
--        3 paused   set     types that must not start
--        4 index    hash    marks of the line, masks of the routes, the latest claim per worker
--        5 strays   list    ids in line that have no lane yet
--        6 claims   hash    id -> 'token worker type' of who runs it
--        7 leases   zset    ids that run under a lease of their own
--        8 blocked  set     types that somebody wanted while they were at their limit
--        9 events   stream  what happened
--        10 finished  list    'ms id' of ended jobs, newest first
--        11 parents   set     ids that other jobs wait for
--        12 settled   list    ended ids that other jobs wait for
--        13 processed string  how many jobs succeeded
--        14 spent     string  how many milliseconds they took
--        15 cancelled hash    ids that shall stop
--        16 terms     zset    tokens of claims; score = until when their jobs are held
--        17 held      hash    token -> how many jobs run under that term
-- ARGV   1 now_ms  2 server  3 request  4 most  5 lock_ttl_s  6 lease_until_ms  7 prefix
--        8 events_max  9 result_ttl_s  10 done  11 wake  12 spent_ms  13 record  14 routes
--        15 ..rest
--        of each route: rid, type, max_concurrent or '', max_per_minute or ''; then what succeeded,
--        as `finish` takes it
-- REPLY  {'claimed' or 'empty', version, server version, strays, wait_ms or -1, more, token,
--         settled or 0, how many were not done, their numbers ..., id, data, id, data, ...}
--
-- Undeclared keys: which jobs come is only known here, so their data, lock and status, the lanes
-- and the counters of their types are spelled from the prefix; all share its hash tag.
--
-- Keeps: an id taken is out of waiting and in active and claims, locked, with status active, and
-- held until the term of this call ends, or its own lease once it was renewed; one request takes
-- jobs once, and the latest of a record, when repeated, gets the same jobs again. The highest
-- priority goes first, within one the longest waiting. Work is bounded by `most`, by what was done
-- and by the number of routes, not by what waits for others. What was done is as in `complete`.
local call = redis.call
local now, server, request = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local most, until_ms, prefix = tonumber(ARGV[4]), ARGV[6], ARGV[7]
local waiting, record, ROUTES = KEYS[1], 'r:' .. ARGV[13], 14
local DATA, LOCK, STATUS = prefix .. 'jobs:data:', prefix .. 'jobs:lock:', prefix .. 'jobs:status:'
local LANE, RUNNING = prefix .. 'jobs:lane:', prefix .. 'ratelimit:concurrent:'
local STARTS, MINUTE = prefix .. 'jobs:starts:', prefix .. 'ratelimit:minute:'

local routes = tonumber(ARGV[ROUTES])
local lost, settled = {}, false
if #ARGV > ROUTES + 4 * routes then
  lost, settled = finish({
    active = KEYS[2], claims = KEYS[6], leases = KEYS[7], finished = KEYS[10], parents = KEYS[11],
    settled = KEYS[12], blocked = KEYS[8], processed = KEYS[13], spent = KEYS[14],
    cancelled = KEYS[15], terms = KEYS[16], held = KEYS[17], events = KEYS[9], now = ARGV[1],
    result_ttl = ARGV[9], events_max = ARGV[8], done = ARGV[10], wake = ARGV[11],
    spent_ms = ARGV[12], prefix = prefix,
  }, ROUTES + 4 * routes + 1)
end

-- Of the i-th route these are the arguments RID + 4 * i and so on.
local RID, KIND, CONCURRENT, PER_MINUTE = ROUTES - 3, ROUTES - 2, ROUTES - 1, ROUTES
local want = { 'v:', 'v:' .. server, record, 'fence' }
for i = 1, routes do want[4 + i] = 'm:' .. ARGV[RID + 4 * i] end
local s = line_open(waiting, KEYS[4], KEYS[5], now, want)
local reply = { 'empty', tonumber(s.more[1]) or 0, tonumber(s.more[2]) or 0,
  call('LLEN', KEYS[5]), -1, 0, 0, settled and 1 or 0, #lost, spread(lost) }
local head = #reply

-- The same request again: its reply got lost, the jobs are taken.
local before = s.more[3]
if before and string.sub(before, 1, #request + 1) == request .. '\n' then
  local token, mine = nil, nil
  for word in string.gmatch(string.sub(before, #request + 2), '[^\n]+') do
    if not token then
      token = word
      mine = token .. ' ' .. server .. ' '
      reply[7] = tonumber(token)
    else
      local claim = call('HGET', KEYS[6], word)
      if claim and string.sub(claim, 1, #mine) == mine then
        reply[1] = 'claimed'
        reply[#reply + 1] = word
        reply[#reply + 1] = call('GET', DATA .. word)
      end
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
    types[#types + 1] = ARGV[KIND + 4 * i]
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
if any and call('SCARD', KEYS[3]) > 0 then
  local is = call('SMISMEMBER', KEYS[3], spread(types))
  for i = 1, #types do
    if is[i] == 1 then shut[types[i]] = true end
  end
end

-- May one more job of this route start? Counters are read once and kept up as jobs are taken.
local running, started, full = {}, {}, {}
local function wait_at_most(ms)
  if reply[5] < 0 or ms < reply[5] then reply[5] = ms end
end
local function may_start(i, kind)
  local concurrent, minute = ARGV[CONCURRENT + 4 * i], ARGV[PER_MINUTE + 4 * i]
  if concurrent ~= '' then
    if not running[kind] then running[kind] = tonumber(call('GET', RUNNING .. kind) or 0) end
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
    local then_ms = tonumber(call('LINDEX', STARTS .. kind, nth) or 0)
    if then_ms > now - 60000 then
      wait_at_most(then_ms + 60000 - now)
      return false
    end
  end
  return true
end

local taken, kinds, minutes, count = {}, {}, {}, 0   -- ids, their types, types with a limit per minute
local window, place, next_at, out, out_to = nil, nil, 1, {}, 0
local masks, looked_at, bound, ttl = {}, 0, 4 * most + 64, ARGV[5]
local locks, unlocked = nil, 0   -- of the first in line; that many are known to be unlocked

-- Where an id is near the head of the line. Lanes and line mostly agree, so the next is looked at
-- before a map of all is made.
local function near(id)
  if window[next_at] == id then
    next_at = next_at + 1
    return next_at - 1
  end
  if not place then
    place = {}
    for at = #window, 1, -1 do place[window[at]] = at end
  end
  return place[id]
end

-- Locks a candidate near the head, or answers false. Whether the first in line are locked is asked
-- of all of them at once: nearly always none is.
local function lock_near(id, at)
  if not locks then
    locks = {}
    for n = 1, math.min(most, #window) do locks[n] = LOCK .. window[n] end
    if call('EXISTS', spread(locks)) == 0 then unlocked = #locks end
  end
  if at <= unlocked then
    -- With GET it answers nothing instead of a table that says OK, unless the id is in line twice
    -- and was locked a moment ago.
    return not call('SET', locks[at], server, 'GET', 'EX', ttl)
  end
  return call('SET', LOCK .. id, server, 'NX', 'EX', ttl)
end

-- Locks a candidate that is not near the head, and takes it out of line. Answers 'taken', 'locked'
-- or 'gone'.
local function take_far(id, seq)
  local status = call('GET', STATUS .. id)
  if call('EXISTS', LOCK .. id) == 1 then
    return status == 'active' and 'gone' or 'locked'
  end
  -- A lane may still name a job that others took; only what is in line is taken.
  local ended = status == 'completed' or status == 'dead' or status == 'failed' or status == 'active'
  if not line_take(s, id, seq - s.base, not ended) then return 'gone' end
  call('SET', LOCK .. id, server, 'EX', ttl)
  return 'taken'
end

-- Takes jobs from a lane for as long as its first entry is not younger than `rival`, the first of
-- another lane.
local function take_from(lane, rival)
  local i, list, at, kind, limited = lane.i, lane.list, lane.at, lane.kind, lane.limited
  local some = false
  repeat
    if limited and not may_start(i, kind) then
      lane.at, lane.head = at, nil
      return
    end
    local id, outcome = list[at + 1], nil
    local where = near(id)
    if not where or out[where] then
      outcome = take_far(id, tonumber(list[at]))
    elseif lock_near(id, where) then
      out[where] = true
      if where > out_to then out_to = where end
      outcome = 'taken'
    else
      outcome = 'locked'
    end
    looked_at = looked_at + 1
    if outcome == 'taken' then
      count = count + 1
      taken[count], kinds[count] = id, kind
      started[kind] = (started[kind] or 0) + 1
      if limited and ARGV[PER_MINUTE + 4 * i] ~= '' then minutes[kind] = (minutes[kind] or 0) + 1 end
    elseif outcome == 'locked' then
      -- Somebody holds its lock without running it; it goes to the end and is tried again.
      lane.back[#lane.back + 1] = list[at]
      lane.back[#lane.back + 1] = id
    end
    at = at + 2
    some = count < most and looked_at < bound
    if some and at > #list then
      call('LTRIM', lane.key, at - 1, -1)
      list = call('LRANGE', lane.key, 0, 2 * (most - count) + 1)
      lane.list, at = list, 1
    end
  until not some or not list[at] or (rival and tonumber(list[at]) > rival)
  lane.at, lane.head = at, tonumber(list[at])
end

for p = 10, 1, -1 do
  local lanes = {}
  for _, i in ipairs(levels[p] or {}) do
    local kind = ARGV[KIND + 4 * i]
    local limited = ARGV[CONCURRENT + 4 * i] ~= '' or ARGV[PER_MINUTE + 4 * i] ~= ''
    if count < most and looked_at < bound and not shut[kind] and (not limited or may_start(i, kind)) then
      local key = LANE .. ARGV[RID + 4 * i] .. ':' .. p
      local list = call('LRANGE', key, 0, 2 * (most - count) + 1)
      lanes[#lanes + 1] = { i = i, key = key, list = list, at = 1, back = {}, kind = kind,
        limited = limited, head = tonumber(list[1]) }
    end
  end
  if #lanes > 0 and not window then window = call('LRANGE', waiting, 0, most + 31) end
  while count < most and looked_at < bound do
    -- The lane whose first entry waits the longest, and the first entry of the next such lane.
    local lane, oldest, rival = nil, nil, nil
    for n = 1, #lanes do
      local first = lanes[n].head
      if first and (not oldest or first < oldest) then
        lane, oldest, rival = lanes[n], first, oldest
      elseif first and (not rival or first < rival) then
        rival = first
      end
    end
    if not lane then break end
    take_from(lane, rival)
  end
  for n = 1, #lanes do
    local lane = lanes[n]
    if lane.at > 1 then call('LTRIM', lane.key, lane.at - 1, -1) end
    if #lane.back > 0 then
      call('RPUSH', lane.key, spread(lane.back))
      wait_at_most(250)
    elseif lane.at > #lane.list and call('EXISTS', lane.key) == 0 then
      local rid = ARGV[RID + 4 * lane.i]
      local mask = masks[rid] or tonumber(s.more[4 + lane.i])
      masks[rid] = mask - weight(p)
    end
  end
end
if count == most or looked_at >= bound then reply[6] = 1 end

-- Takes what was found at the head out of the list in one go, and puts back what was not wanted.
if out_to > 0 then
  local keep = {}
  for at = out_to, 1, -1 do
    if not out[at] then keep[#keep + 1] = window[at] end
  end
  call('LTRIM', waiting, out_to, -1)
  if #keep > 0 then call('LPUSH', waiting, spread(keep)) end
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
for kind in pairs(full) do call('SADD', KEYS[8], kind) end

local data = {}
if count > 0 then
  local keys = {}
  for i = 1, count do keys[i] = DATA .. taken[i] end
  data = call('MGET', spread(keys))
  for i = count, 1, -1 do
    if not data[i] then
      -- The job was deleted; only its name was still in line.
      call('DEL', LOCK .. taken[i])
      started[kinds[i]] = started[kinds[i]] - 1
      table.remove(taken, i)
      table.remove(kinds, i)
      table.remove(data, i)
      count = count - 1
    end
  end
end
if count > 0 then
  -- One token for all of a call: it grows from claim to claim, and that is all it has to do.
  local token = string.format('%.0f', (tonumber(s.more[4]) or 0) + 1)
  local texts = {}
  for kind in pairs(started) do texts[kind] = token .. ' ' .. server .. ' ' .. kind end
  -- A packed hash is searched from its start; an entry of more than 64 bytes keeps it from being
  -- packed. No job is called '-'.
  local claims, statuses = { '-', string.rep('-', 65) }, {}
  for i = 1, count do
    local id = taken[i]
    statuses[2 * i - 1], statuses[2 * i] = STATUS .. id, 'active'
    claims[2 * i + 1], claims[2 * i + 2] = id, texts[kinds[i]]
    reply[head + 2 * i - 1], reply[head + 2 * i] = id, data[i]
  end
  reply[1], reply[7] = 'claimed', tonumber(token)
  call('MSET', spread(statuses))
  call('SADD', KEYS[2], spread(taken))
  call('HSET', KEYS[6], spread(claims))
  call('ZADD', KEYS[16], until_ms, token)
  call('HSET', KEYS[17], token, count)
  for kind, places in pairs(started) do
    if places > 0 then call('INCRBY', RUNNING .. kind, places) end
  end
  for kind, places in pairs(minutes) do
    for _ = 1, places do
      call('LPUSH', STARTS .. kind, now)
      for _ = 1, 2 do
        local oldest = tonumber(call('LINDEX', STARTS .. kind, -1))
        if oldest > now - 60000 then break end
        call('RPOP', STARTS .. kind)
      end
    end
    call('EXPIRE', STARTS .. kind, 120)
    if call('INCRBY', MINUTE .. kind, places) == places then
      call('EXPIRE', MINUTE .. kind, 60)
    end
  end
  local names = table.concat(taken, '\n')
  s.set[#s.set + 1] = 'fence'
  s.set[#s.set + 1] = token
  s.set[#s.set + 1] = record
  s.set[#s.set + 1] = request .. '\n' .. token .. '\n' .. names
  emit(KEYS[9], ARGV[8], 'started', now, names, server)
end
line_close(s)
return reply
