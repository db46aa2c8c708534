-- take(lost, settled) -- hands the next jobs of a worker to it, each under a lock and a lease, and
-- gives the reply of `claim`. `lost` and `settled` are what became of the jobs it has done.
--
-- KEYS 1 to 10 and ARGV 1 to 10, then the routes, are those of `claim`. What is only needed for some
-- jobs is only made for those: an idle worker claims one at a time.
local function take(lost, settled)
  local call = redis.call
  local prefix, server, request, most = ARGV[2], ARGV[4], ARGV[5], tonumber(ARGV[6])
  local ttl, record, routes = ARGV[7], 'r:' .. ARGV[9], tonumber(ARGV[10])
  local waiting = KEYS[7]

  -- Of the i-th route the arguments are RID + 4 * i and so on.
  local RID, KIND, CONCURRENT, PER_MINUTE = 7, 8, 9, 10
  local want = { 'v:', 'v:' .. server, record, 'fence', routes > 0 and 'm:' .. ARGV[11] or nil }
  for i = 2, routes do want[4 + i] = 'm:' .. ARGV[RID + 4 * i] end
  local s = line_open(waiting, KEYS[9], KEYS[10], ARGV[1], want)
  local more, strays, paused = s.more, 0, 0
  if call('EXISTS', KEYS[10], KEYS[8]) > 0 then
    strays, paused = call('LLEN', KEYS[10]), call('SCARD', KEYS[8])
  end
  local reply = { 'empty', more[1] or 0, more[2] or 0, strays, -1, 0, 0, settled and 1 or 0, #lost }
  for n = 1, #lost do reply[9 + n] = lost[n] end
  local head = #reply

  -- The same request again: its reply got lost, the jobs are taken.
  local before = more[3]
  if before and string.sub(before, 1, #request + 1) == request .. '\n' then
    local token, mine = nil, nil
    for word in string.gmatch(string.sub(before, #request + 2), '[^\n]+') do
      if not token then
        token = word
        mine = token .. ' ' .. server .. ' '
        reply[7] = token
      else
        local claim = call('HGET', KEYS[2], word)
        if claim and string.sub(claim, 1, #mine) == mine then
          reply[1] = 'claimed'
          reply[#reply + 1] = word
          reply[#reply + 1] = call('GET', prefix .. 'jobs:data:' .. word)
        end
      end
    end
    line_close(s)
    return reply
  end

  -- Which routes have jobs.
  local masks, any, limits = {}, false, false
  for i = 1, routes do
    local mask = more[4 + i]
    if mask and mask ~= '0' then
      masks[i], any = tonumber(mask), true
      limits = limits or ARGV[CONCURRENT + 4 * i] ~= '' or ARGV[PER_MINUTE + 4 * i] ~= ''
    else
      masks[i] = 0
    end
  end
  if not any then
    line_close(s)
    return reply
  end
  local shut = nil
  if paused > 0 then
    local types, is = {}, nil
    for i = 1, routes do types[i] = ARGV[KIND + 4 * i] end
    shut, is = {}, chunked('SMISMEMBER', KEYS[8], types)
    for i = 1, routes do
      if is[i] == 1 then shut[types[i]] = true end
    end
  end

  -- May one more job of this route start? Counters are read once and kept up as jobs are taken.
  local started, full, may_start = {}, nil, nil
  if limits then
    local running, now = {}, tonumber(ARGV[1])
    full = {}
    local function wait_at_most(ms)
      if reply[5] < 0 or ms < reply[5] then reply[5] = ms end
    end
    may_start = function(i, kind)
      local concurrent, minute = ARGV[CONCURRENT + 4 * i], ARGV[PER_MINUTE + 4 * i]
      if concurrent ~= '' then
        if not running[kind] then
          running[kind] = tonumber(call('GET', prefix .. 'ratelimit:concurrent:' .. kind) or 0)
        end
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
        local then_ms = tonumber(call('LINDEX', prefix .. 'jobs:starts:' .. kind, nth) or 0)
        if then_ms > now - 60000 then
          wait_at_most(then_ms + 60000 - now)
          return false
        end
      end
      return true
    end
  end

  local LOCK = prefix .. 'jobs:lock:'
  local taken, kinds, minutes, count = { 0 }, { 0 }, nil, 0   -- ids, their types, types with a limit per minute
  local window, place, next_at, out, out_to = nil, nil, 1, { false }, 0
  local looked_at, bound = 0, 4 * most + 64
  local locks, unlocked = nil, 0   -- of the first in line; that many are known to be unlocked

  local BITS, cleared = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 }, nil
  for p = 10, 1, -1 do
    local bit, lanes, some = BITS[p], nil, 0
    for i = 1, routes do
      local mask = masks[i]
      if mask >= bit then
        -- What is left are the lower priorities.
        masks[i] = mask - bit
        local kind = ARGV[KIND + 4 * i]
        local limited = limits and (ARGV[CONCURRENT + 4 * i] ~= '' or ARGV[PER_MINUTE + 4 * i] ~= '')
        if count < most and looked_at < bound and not (shut and shut[kind])
          and (not limited or may_start(i, kind)) then
          local key = prefix .. 'jobs:lane:' .. ARGV[RID + 4 * i] .. ':' .. p
          local asked = 2 * (most - count) + 2
          local list = call('LRANGE', key, '0', asked - 1)
          local lane = { i = i, key = key, list = list, asked = asked, at = 1, back = false,
            limited = limited, head = tonumber(list[1]) }
          some = some + 1
          if lanes then lanes[some] = lane else lanes = { lane } end
        end
      end
    end
    if lanes and not window then window = call('LRANGE', waiting, '0', most + 31) end
    while some > 0 and count < most and looked_at < bound do
      -- The lane whose first entry waits the longest, and the first entry of the next such lane.
      local lane, oldest, rival = nil, nil, nil
      for n = 1, some do
        local first = lanes[n].head
        if first and (not oldest or first < oldest) then
          lane, oldest, rival = lanes[n], first, oldest
        elseif first and (not rival or first < rival) then
          rival = first
        end
      end
      if not lane then break end
      -- Jobs are taken from it for as long as its first entry is not younger than its rival.
      local i, list, at, limited = lane.i, lane.list, lane.at, lane.limited
      local kind, going = ARGV[KIND + 4 * i], true
      repeat
        if limited and not may_start(i, kind) then
          lane.head, going = nil, false
          break
        end
        local id, outcome = list[at + 1], 'taken'
        -- Where it is near the head of the line. Lanes and line mostly agree, so the next is looked
        -- at before a map of all is made.
        local where = nil
        if window[next_at] == id then
          where = next_at
          next_at = next_at + 1
        else
          if not place then
            place = {}
            for n = #window, 1, -1 do place[window[n]] = n end
          end
          where = place[id]
        end
        if where and not out[where] then
          -- Whether the first in line are locked is asked of all of them at once: nearly always
          -- none is. With GET a lock answers nothing instead of a table that says OK, unless the id
          -- is in line twice and was locked a moment ago.
          if not locks then
            locks = {}
            local first = math.min(most, #window)
            if first > 1 then
              for n = 1, first do locks[n] = LOCK .. window[n] end
              if chunked('EXISTS', nil, locks) == 0 then unlocked = first end
            end
          end
          if where <= unlocked and not call('SET', locks[where], server, 'GET', 'EX', ttl)
            or where > unlocked and call('SET', LOCK .. id, server, 'NX', 'EX', ttl) then
            out[where] = true
            if where > out_to then out_to = where end
          else
            outcome = 'locked'
          end
        else
          -- A lane may still name a job that others took; only what is in line is taken.
          local status = call('GET', prefix .. 'jobs:status:' .. id)
          if call('EXISTS', LOCK .. id) == 1 then
            outcome = status == 'active' and 'gone' or 'locked'
          else
            local ended = status == 'completed' or status == 'dead' or status == 'failed'
              or status == 'active'
            if line_take(s, id, list[at] - s.base, not ended) then
              call('SET', LOCK .. id, server, 'EX', ttl)
            else
              outcome = 'gone'
            end
          end
        end
        looked_at = looked_at + 1
        if outcome == 'taken' then
          count = count + 1
          taken[count], kinds[count] = id, kind
          started[kind] = (started[kind] or 0) + 1
          if limited and ARGV[PER_MINUTE + 4 * i] ~= '' then
            minutes = minutes or {}
            minutes[kind] = (minutes[kind] or 0) + 1
          end
        elseif outcome == 'locked' then
          -- Somebody holds its lock without running it; it goes to the end and is tried again.
          local back = lane.back or {}
          back[#back + 1] = list[at]
          back[#back + 1] = id
          lane.back = back
        end
        at = at + 2
        going = count < most and looked_at < bound
        if going and at > #list and #list == lane.asked then
          call('LTRIM', lane.key, at - 1, '-1')
          lane.asked = 2 * (most - count) + 2
          list = call('LRANGE', lane.key, '0', lane.asked - 1)
          lane.list, at = list, 1
        end
      until not going or not list[at] or (rival and tonumber(list[at]) > rival)
      lane.at = at
      if lane.head then lane.head = tonumber(list[at]) end
    end
    for n = 1, some do
      local lane = lanes[n]
      local length, at = #lane.list, lane.at
      local over = at > length
      if over and length < lane.asked then
        -- That was all of it.
        if length > 0 then call('DEL', lane.key) end
      else
        if at > 1 then call('LTRIM', lane.key, at - 1, '-1') end
        over = over and call('EXISTS', lane.key) == 0
      end
      if lane.back then
        chunked('RPUSH', lane.key, lane.back)
        if reply[5] < 0 or reply[5] > 250 then reply[5] = 250 end
      elseif over then
        cleared = cleared or {}
        cleared[lane.i] = (cleared[lane.i] or more[4 + lane.i]) - bit
      end
    end
  end
  if count == most or looked_at >= bound then reply[6] = 1 end

  -- Takes what was found at the head out of the list in one go, and puts back what was not wanted.
  if out_to > 0 then
    local keep = nil
    for at = out_to, 1, -1 do
      if not out[at] then
        keep = keep or {}
        keep[#keep + 1] = window[at]
      end
    end
    s.base = s.base + out_to - (keep and #keep or 0)
    if not s.clean then
      local known = s.at + 1
      for at = 1, math.min(out_to, known) do
        if out[at] then s.at = s.at - 1 end
      end
    end
    if not keep and not s.moved and out_to == #window and out_to < most + 32 then
      -- That was all of it.
      call('DEL', waiting)
      s.head, s.tail, s.tombs = '', '', 0
    else
      call('LTRIM', waiting, out_to, '-1')
      if keep then chunked('LPUSH', waiting, keep) end
      s.moved = true
    end
  end

  if cleared then
    local set = s.set
    for i, mask in pairs(cleared) do
      set[#set + 1] = 'm:' .. ARGV[RID + 4 * i]
      set[#set + 1] = mask == 0 and '0' or mask
    end
  end
  if full then
    for kind in pairs(full) do call('SADD', KEYS[6], kind) end
  end

  local data = nil
  if count > 0 then
    local keys = { 0 }
    for i = 1, count do keys[i] = prefix .. 'jobs:data:' .. taken[i] end
    data = chunked('MGET', nil, keys)
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
    local token = string.format('%.0f', (more[4] or 0) + 1)
    local STATUS, names = prefix .. 'jobs:status:', taken[1]
    -- A packed hash is searched from its start; an entry of more than 64 bytes keeps it from being
    -- packed. No job is called '-'.
    local claims, statuses = { '-', '-----------------------------------------------------------------', 0, 0 }, { 0, 0 }
    local latest, text = nil, nil
    for i = 1, count do
      local id, kind = taken[i], kinds[i]
      if kind ~= latest then latest, text = kind, token .. ' ' .. server .. ' ' .. kind end
      statuses[2 * i - 1], statuses[2 * i] = STATUS .. id, 'active'
      claims[2 * i + 1], claims[2 * i + 2] = id, text
      reply[head + 2 * i - 1], reply[head + 2 * i] = id, data[i]
    end
    if count > 1 then names = table.concat(taken, '\n') end
    reply[1], reply[7] = 'claimed', token
    chunked('MSET', nil, statuses)
    chunked('SADD', KEYS[1], taken)
    chunked('HSET', KEYS[2], claims)
    call('ZADD', KEYS[3], ARGV[8], token)
    call('HSET', KEYS[4], token, count == 1 and '1' or count)
    for kind, places in pairs(started) do
      if places > 0 then
        call('INCRBY', prefix .. 'ratelimit:concurrent:' .. kind, places == 1 and '1' or places)
      end
    end
    if minutes then
      local now = tonumber(ARGV[1])
      for kind, places in pairs(minutes) do
        local starts, minute = prefix .. 'jobs:starts:' .. kind, prefix .. 'ratelimit:minute:' .. kind
        for _ = 1, places do
          call('LPUSH', starts, ARGV[1])
          for _ = 1, 2 do
            local oldest = tonumber(call('LINDEX', starts, '-1'))
            if oldest > now - 60000 then break end
            call('RPOP', starts)
          end
        end
        call('EXPIRE', starts, '120')
        if call('INCRBY', minute, places) == places then call('EXPIRE', minute, '60') end
      end
    end
    local set = s.set
    local n = #set
    set[n + 1], set[n + 2] = 'fence', token
    set[n + 3], set[n + 4] = record, request .. '\n' .. token .. '\n' .. names
    emit(KEYS[5], ARGV[3], 'started', ARGV[1], names, server)
  end
  line_close(s)
  return reply
end
