-- room/join -- take a place in the line, or find the one already held.
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
--       15 position     hash    the new place
--       16 held         hash    the place the visitor's token names, or the new one
--       17 ipmap        string  the place of this address
--       18 once         string  the place made under this idempotency key
--       19 invite       string  how often the invite was used
-- ARGV   1 now_ms  2 queue_id  3 id  4 ticket  5 session_id  6 level  7 held_id  8 dead_id
--        9 ip_address  10 ip_hash  11 user_agent  12 metadata  13 once_ttl  14 invite_uses
--       15 invite_ttl
-- REPLY  {'waiting', id, ticket, position, total} | {'admitted', id, ticket, session_id, claim_by_ms}
--        | {'existing', id} | {'mapped', id} | {'late', last_ticket} | {'full', total}
--        | {'maintenance'} | {'invite_used'} | {'unknown_queue'}
--
-- Keeps: a ticket is unique and grows in the order of joining, whatever the clocks say; scores
-- within a lane grow with its list; whoever holds a place is told so before any limit is looked
-- at; a repeated call finds the place it made.
local meta, state, positions = KEYS[1], KEYS[2], KEYS[3]
local lanes = { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local heartbeat, claims, active = KEYS[8], KEYS[9], KEYS[10]
local tokens, last_update, stats, events = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local position, held, ipmap, once, invite = KEYS[15], KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local now_ms = tonumber(ARGV[1])
local queue_id, id, session_id = ARGV[2], ARGV[3], ARGV[5]
local level = tonumber(ARGV[6])
local held_id, dead_id = ARGV[7], ARGV[8]
local once_ttl = tonumber(ARGV[13])

local m = redis.call('HMGET', meta, 'status', 'max_queue_size', 'max_active', 'admission_count',
  'admission_per_seconds', 'admission_burst', 'priority_policy', 'reserved_share',
  'claim_window_seconds', 'position_ttl', 'duplicates')
if not m[1] then
  return { 'unknown_queue' }
end
if redis.call('EXISTS', position) == 1 then
  return { 'existing', id }
end

-- Who holds a place keeps it; a better proof moves it to a better lane.
local upgrade = false
if held_id ~= '' then
  local h = redis.call('HMGET', held, 'status', 'priority', 'queue_id')
  if h[3] == queue_id or not h[3] then
    if redis.call('ZSCORE', positions, held_id) then
      if level <= num(h[2], 0) then
        return { 'existing', held_id }
      end
      upgrade = true
    elseif redis.call('ZSCORE', claims, held_id) or h[1] == 'active' then
      return { 'existing', held_id }
    end
  end
end
if once_ttl > 0 then
  local made = redis.call('GET', once)
  if made then
    return { 'existing', made }
  end
end
local by_address = m[11] == 'ip' and ARGV[10] ~= ''
if by_address and not upgrade then
  local mapped = redis.call('GET', ipmap)
  if mapped and mapped ~= dead_id then
    if redis.call('ZSCORE', positions, mapped) or redis.call('ZSCORE', claims, mapped) then
      return { 'existing', mapped }
    end
    return { 'mapped', mapped }
  end
end

if m[1] ~= 'active' and m[1] ~= 'paused' then
  return { 'maintenance' }
end
local total = redis.call('ZCARD', positions)
local most = num(m[2], 0)
if most > 0 and total >= most and not upgrade then
  return { 'full', int(total) }
end
local uses = tonumber(ARGV[14])
if uses > 0 and num(redis.call('GET', invite), 0) >= uses then
  return { 'invite_used' }
end

local last = num(redis.call('HGET', state, 'last_ticket'), 0)
local proposed = tonumber(ARGV[4])
local ticket = math.max(proposed, last + 1)
local skips = m[7] ~= 'strict' and (level == 1 or level == 2)
if skips and proposed <= last then
  -- The id must sort behind every older one, because equal scores are told apart by it.
  return { 'late', int(last) }
end

if upgrade then
  redis.call('ZREM', positions, held_id)
  redis.call('ZREM', heartbeat, held_id)
  finish(held, 'expired', 'upgraded', now_ms, m[10])
  redis.call('HSET', held, 'replaced_by', id)
  total = total - 1
end

local lane = lanes[level + 1]
local score = ticket
if m[7] == 'strict' or level == 3 then
  score = ticket - level * 1000000000000000
elseif skips and total > 0 then
  local ahead = math.ceil(total * (level == 1 and 9 or 5) / 10)
  if ahead < total then
    score = tonumber(redis.call('ZRANGE', positions, int(ahead - 1), int(ahead - 1), 'WITHSCORES')[2])
  end
  for _ = 1, 1000 do
    local tail = redis.call('LINDEX', lane, '-1')
    if not tail then
      break
    end
    local behind = redis.call('ZSCORE', positions, tail)
    if behind then
      score = math.max(score, tonumber(behind))
      break
    end
    redis.call('RPOP', lane)
  end
end
score = int(score)

local now_s = int(math.floor(now_ms / 1000))
redis.call('HSET', state, 'last_ticket', int(ticket))
redis.call('RPUSH', lane, id)
redis.call('ZADD', positions, score, id)
redis.call('HSET', position, 'queue_id', queue_id, 'session_id', '', 'status', 'waiting',
  'priority', int(level), 'enqueued_at', now_s, 'last_heartbeat', now_s,
  'ip_address', ARGV[9], 'ip_hash', ARGV[10], 'user_agent', ARGV[11], 'metadata', ARGV[12])
redis.call('EXPIRE', position, m[10])
redis.call('ZADD', heartbeat, now_s, id)
if by_address then
  redis.call('SET', ipmap, id, 'EX', m[10])
end
if once_ttl > 0 then
  redis.call('SET', once, id, 'EX', ARGV[13])
end
if uses > 0 then
  redis.call('INCR', invite)
  redis.call('EXPIRE', invite, ARGV[15])
end
total = total + 1
count_one(stats, state, 'total_enqueued', '1')
if num(redis.call('HGET', stats, 'peak_queue_size'), 0) < total then
  redis.call('HSET', stats, 'peak_queue_size', int(total))
end
emit(events, 'position.enqueued', now_ms,
  '{"position_id":"' .. id .. '","priority":' .. int(level) .. '}')

local line = line_of(m[7], m[8], redis.call('HGET', state, 'since_normal'), now_ms)
local rank = redis.call('ZRANK', positions, id)
local place = shown(positions, line, rank, total)
if place == 1 and m[1] == 'active' and free_slots(m[3], claims, active) > 0 then
  local rate = rate_of(m[4], m[5], m[6])
  local have, rem, last_ms = bucket(tokens, last_update, state, now_ms, rate)
  if have >= 1 then
    local claim_ms = num(m[9], 120) * 1000
    local k = { positions = positions, heartbeat = heartbeat, claims = claims, events = events,
      queue_id = queue_id, position_ttl = m[10] }
    put_bucket(tokens, last_update, state, have - 1, rem, last_ms)
    local wait = let_in(k, id, position, score, session_id, now_ms, claim_ms)
    if line.share > 0 then
      local since = tonumber(score) >= line.normal and 0 or line.since + 1
      redis.call('HSET', state, 'since_normal', int(since))
    end
    count_admitted(state, stats, now_ms, { wait })
    drop_dead(lane, positions, 100)
    return { 'admitted', id, int(ticket), session_id, int(now_ms + claim_ms) }
  end
end
return { 'waiting', id, int(ticket), int(place), int(total) }
