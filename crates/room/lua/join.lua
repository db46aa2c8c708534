-- room/join -- take places in the line, or find those already held.
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    last ticket, counters, clocks
--        3 positions    zset    who waits; score = admission order
--        4 lane0        list    waiting ids of level 0, first come first
--        5 lane1        list    level 1
--        6 lane2        list    level 2
--        7 lane3        list    level 3
--        8 heartbeat    zset    last sign of life, Unix seconds
--        9 claims       zset    admitted ids; score = claim_by_ms
--       10 active       set     ids of running sessions
--       11 tokens       string  admissions the rate allows
--       12 last_update  string  Unix seconds the tokens are true for
--       13 stats        hash    counters of this hour
--       14 events       stream  what happened
--       15 ..places             of each join, in this order, what it has of:
--                               the new place, a hash whose name ends in the id;
--                               if held_id: the place the visitor's token names, a hash;
--                               if by_address and ip_hash: the place of the address, a string;
--                               if once_ttl > 0: the place made under an idempotency key, a string;
--                               if invite_uses > 0: how often the invite was used, a string
-- ARGV   1 now_ms  2 queue_id  3 by_address  4 ..joins
-- REPLY  {'joins', …} | {'unknown_queue'}; then for each join
--        'waiting', ticket, position, total | 'admitted', ticket, claim_by_ms | 'existing', id
--        | 'mapped', id | 'late', last_ticket | 'full', total | 'maintenance' | 'invite_used' | 'settings'
--
-- Of each join: ticket, session_id, level, held_id, dead_ids, ip_address, ip_hash, user_agent,
-- metadata, user_id, once_ttl, invite_uses, invite_ttl. The reply 'settings' says that an address
-- counts here although by_address was not 1. 'mapped' says that the key or the address names a
-- position that is not in the line: the caller looks, and names it in dead_ids if it is over.
--
-- Keeps: joins count one after the other, in their order. A ticket is unique and grows in the order
-- of joining, whatever the clocks say; scores within a lane grow with its list; whoever holds a
-- place is told so before any limit is looked at; a repeated call finds the place it made.
local call, sub, max, keys, args = redis.call, string.sub, math.max, KEYS, ARGV
local meta, state, positions = keys[1], keys[2], keys[3]
local lanes = { keys[4], keys[5], keys[6], keys[7] }
local heartbeat, claims, active = keys[8], keys[9], keys[10]
local tokens, last_update, stats, events = keys[11], keys[12], keys[13], keys[14]
local now_ms, queue_id = tonumber(args[1]), args[2]

local m = call('HMGET', meta, 'status', 'max_queue_size', 'max_active', 'admission_count',
  'admission_per_seconds', 'admission_burst', 'priority_policy', 'reserved_share',
  'claim_window_seconds', 'position_ttl', 'duplicates')
if not m[1] then
  return { 'unknown_queue' }
end
local s = call('HMGET', state, 'last_ticket', 'since_normal')
local strict, ttl, most = m[7] == 'strict', m[10], num(m[2], 0)
local now_s = int(math.floor(now_ms / 1000))
local total = call('ZCARD', positions)
local last, since = num(s[1], 0), s[2]
local fields, count = 13, (#args - 3) / 13
-- The last ticket if all of them join: whatever happens half way, none is given twice.
local reserved = last
for i = 1, count do
  reserved = max(tonumber(args[4 + (i - 1) * fields]), reserved + 1)
end
local begun, made, peak = false, 0, 0

-- One join, as ARGV has it.
local function read_join(i)
  local a = 3 + (i - 1) * fields
  return {
    ticket = tonumber(args[a + 1]), session_id = args[a + 2], level = tonumber(args[a + 3]),
    held_id = args[a + 4], dead_ids = args[a + 5], ip_address = args[a + 6], ip_hash = args[a + 7],
    user_agent = args[a + 8], metadata = args[a + 9], user_id = args[a + 10],
    once_ttl = tonumber(args[a + 11]), uses = tonumber(args[a + 12]), invite_ttl = args[a + 13],
  }
end

local function keep_record(join)
  call('HSET', join.position, 'queue_id', queue_id, 'session_id', '', 'status', 'waiting',
    'priority', int(join.level), 'enqueued_at', now_s, 'last_heartbeat', now_s,
    'ip_address', join.ip_address, 'ip_hash', join.ip_hash, 'user_agent', join.user_agent,
    'metadata', join.metadata, 'ticket', join.number)
  if join.user_id ~= '' then
    call('HSET', join.position, 'user_id', join.user_id)
  end
  call('EXPIRE', join.position, ttl)
  emit(events, 'position.enqueued', now_ms,
    '{"position_id":"' .. join.id .. '","priority":' .. int(join.level) .. '}')
end

-- Those who come last, with nobody to look at them in between, go into the line together.
local crowd, ids, scores, beats = {}, {}, {}, {}
local function settle()
  if #crowd == 0 then
    return
  end
  local spread = unpack or table.unpack
  call('RPUSH', lanes[1], spread(ids))
  call('ZADD', positions, spread(scores))
  call('ZADD', heartbeat, spread(beats))
  for _, join in ipairs(crowd) do
    keep_record(join)
  end
  crowd, ids, scores, beats = {}, {}, {}, {}
end

-- The place the visitor has already, as a reply; or whether a better proof moves it.
local function find(join, by_address)
  if call('EXISTS', join.position) == 1 then
    return { 'existing', join.id }
  end
  -- Who holds a place keeps it; a better proof moves it to a better lane.
  local upgrade = false
  if join.held then
    local h = call('HMGET', join.held, 'status', 'priority', 'queue_id', 'replaced_by')
    if h[3] == queue_id or not h[3] then
      if call('ZSCORE', positions, join.held_id) then
        if join.level <= num(h[2], 0) then
          return { 'existing', join.held_id }
        end
        upgrade = true
      elseif call('ZSCORE', claims, join.held_id) or h[1] == 'active' then
        return { 'existing', join.held_id }
      elseif h[4] and (call('ZSCORE', positions, h[4]) or call('ZSCORE', claims, h[4])) then
        -- It got a better place before, and the answer to that was lost or has not arrived yet.
        return { 'existing', h[4] }
      end
    end
  end
  local once = join.once and call('GET', join.once)
  local mapped = by_address and not upgrade and call('GET', join.ipmap)
  for _, named in ipairs({ once or '', mapped or '' }) do
    if named ~= '' and not string.find(join.dead_ids, named, 1, true) then
      if call('ZSCORE', positions, named) or call('ZSCORE', claims, named) then
        return { 'existing', named }
      end
      return { 'mapped', named }
    end
  end
  return nil, upgrade
end

-- The rank a level is promised in a line of `total`: behind nine tenths of it, half of it, nobody;
-- and behind everybody of the same level.
local function promised_rank(level)
  local tenths = ({ [0] = 10, 9, 5, 0 })[level]
  local rank, lane = math.ceil(total * tenths / 10), lanes[level + 1]
  for _ = 1, 1000 do
    local tail = rank < total and call('LINDEX', lane, '-1')
    if not tail then
      break
    end
    local behind = call('ZRANK', positions, tail)
    if behind then
      return max(rank, behind + 1)
    end
    call('RPOP', lane)
  end
  return rank
end

-- The score that puts a position where its level belongs.
local function score_of(join, ticket)
  local score = ticket - (strict and join.level or join.level == 3 and 3 or 0) * 1000000000000000
  if strict or join.level == 0 then
    return score
  end
  local rank = promised_rank(join.level)
  if rank >= total then
    return ticket
  end
  local near = call('ZRANGE', positions, int(max(rank - 1, 0)), int(rank), 'WITHSCORES')
  if rank == 0 then
    return math.min(score, math.ceil(tonumber(near[2])) - 1)
  end
  if tonumber(near[2]) < score and score < tonumber(near[4]) then
    return score
  end
  local highest
  score, highest = score_at(positions, rank, join.id, ticket)
  if highest > last then
    -- Whoever comes next must have a higher ticket than anybody's score.
    last = math.ceil(highest)
    call('HSET', state, 'last_ticket', int(max(last, reserved)))
  end
  return score
end

-- Lets in whoever is first, if there is room: until when the offer stands.
local function admit(join, score, line)
  if m[1] ~= 'active' or free_slots(m[3], claims, active) <= 0 then
    return nil
  end
  local have, rem, last_ms = bucket(tokens, last_update, state, now_ms, rate_of(m[4], m[5], m[6]))
  if have < 1 then
    return nil
  end
  local claim_ms = num(m[9], 120) * 1000
  local k = { positions = positions, heartbeat = heartbeat, claims = claims, events = events,
    queue_id = queue_id, position_ttl = ttl }
  put_bucket(tokens, last_update, state, have - 1, rem, last_ms)
  local wait = let_in(k, join.id, join.position, score, join.session_id, now_ms, claim_ms)
  if line.share > 0 then
    since = int(tonumber(score) >= line.normal and 0 or line.since + 1)
    call('HSET', state, 'since_normal', since)
  end
  count_admitted(state, stats, now_ms, { wait })
  drop_dead(lanes[join.level + 1], positions, 100)
  total = total - 1
  return int(now_ms + claim_ms)
end

local function take(join)
  local by_address = m[11] == 'ip' and join.ip_hash ~= ''
  if by_address and not join.ipmap then
    return { 'settings' }
  end
  local line = line_of(m[7], m[8], since, now_ms)
  local alone = join.held or join.once or join.invite or by_address or join.level > 0
    or line.share > 0 or (total == 0 and m[1] == 'active')
  if alone then
    settle()
  end
  local found, upgrade = find(join, by_address)
  if found then
    return found
  end
  if m[1] ~= 'active' and m[1] ~= 'paused' then
    return { 'maintenance' }
  end
  if most > 0 and total >= most and not upgrade then
    return { 'full', int(total) }
  end
  if join.invite and num(call('GET', join.invite), 0) >= join.uses then
    return { 'invite_used' }
  end
  local ticket = max(join.ticket, last + 1)
  if not strict and join.level > 0 and join.ticket <= last then
    -- The id must sort behind every older one, because equal scores are told apart by it.
    return { 'late', int(last) }
  end

  if not begun then
    call('HSET', state, 'last_ticket', int(reserved))
    begun = true
  end
  last, made = ticket, made + 1
  join.number = int(ticket)
  if not alone then
    -- The newest ticket is the highest score, so this one is the last.
    total = total + 1
    peak = max(peak, total)
    crowd[#crowd + 1], ids[#ids + 1] = join, join.id
    scores[#scores + 1], scores[#scores + 2] = join.number, join.id
    beats[#beats + 1], beats[#beats + 2] = now_s, join.id
    return { 'waiting', join.number, int(total), int(total) }
  end

  if upgrade then
    call('ZREM', positions, join.held_id)
    call('ZREM', heartbeat, join.held_id)
    finish(join.held, 'expired', 'upgraded', now_ms, ttl)
    call('HSET', join.held, 'replaced_by', join.id)
    total = total - 1
  end
  local score = string.format('%.17g', score_of(join, ticket))
  call('RPUSH', lanes[join.level + 1], join.id)
  call('ZADD', positions, score, join.id)
  call('ZADD', heartbeat, now_s, join.id)
  keep_record(join)
  if by_address then
    call('SET', join.ipmap, join.id, 'EX', ttl)
  end
  if join.once then
    call('SET', join.once, join.id, 'EX', int(join.once_ttl))
  end
  if join.invite then
    call('INCR', join.invite)
    call('EXPIRE', join.invite, join.invite_ttl)
  end
  total = total + 1
  peak = max(peak, total)
  local place = shown(positions, line, call('ZRANK', positions, join.id), total)
  local waiting = total
  local claim_by = place == 1 and admit(join, score, line)
  if claim_by then
    return { 'admitted', join.number, claim_by }
  end
  return { 'waiting', join.number, int(place), int(waiting) }
end

local reply, at = { 'joins' }, 14
local function next_key(given)
  if given then
    at = at + 1
    return keys[at]
  end
end
for i = 1, count do
  local join = read_join(i)
  join.position = next_key(true)
  join.id = sub(join.position, -36)
  join.held = next_key(join.held_id ~= '')
  join.ipmap = next_key(args[3] == '1' and join.ip_hash ~= '')
  join.once = next_key(join.once_ttl > 0)
  join.invite = next_key(join.uses > 0)
  local told = take(join)
  for n = 1, #told do
    reply[#reply + 1] = told[n]
  end
end
settle()
if last > reserved then
  call('HSET', state, 'last_ticket', int(last))
end
if made > 0 then
  count_one(stats, state, 'total_enqueued', int(made))
  if num(call('HGET', stats, 'peak_queue_size'), 0) < peak then
    call('HSET', stats, 'peak_queue_size', int(peak))
  end
end
return reply
