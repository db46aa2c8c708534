-- room/enqueue -- gives visitors positions in line, or finds those already held.
-- uses: address_full, address_limit, admit_one, bucket, count_address, count_admitted, count_one,
--       drop_tombstones, emit, finish, free_slots, int, line_of, num, put_bucket, rate_of, score_at,
--       shown_position
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    last ticket, counters, clocks
--        3 positions    zset    waiting positions; score = admission order
--        4 lane0        list    waiting ids of priority 0, first come first
--        5 lane1        list    priority 1
--        6 lane2        list    priority 2
--        7 lane3        list    priority 3
--        8 heartbeat    zset    last heartbeat, Unix seconds
--        9 admitted     zset    admitted ids; score = start_by_ms
--       10 active       set     ids of active sessions
--       11 tokens       string  admissions the rate allows
--       12 last_update  string  Unix seconds at which the tokens were counted
--       13 stats        hash    counters of this hour
--       14 events       stream  events of the queue
--       15 ..records            of each request, in this order, those that apply:
--                               the new position, a hash whose name ends in the id;
--                               if held_id: the position the visitor's token names, a hash;
--                               if by_address and ip_hash: the position of the address, a string;
--                               if by_share and ip_hash: admitted positions and sessions of the
--                               address, a zset; score = time of the last check;
--                               if once_ttl > 0: the position made under an idempotency key, a string;
--                               if invite_uses > 0: how often the invite was used, a string
-- ARGV   1 now_ms  2 queue_id  3 by_address  4 by_share  5 ..requests
-- REPLY  {'enqueued', …} | {'unknown_queue'}; then for each request
--        'waiting', ticket, position, total | 'admitted', ticket, start_by_ms | 'existing', id
--        | 'mapped', id | 'late', last_ticket | 'full', total | 'maintenance' | 'invite_used' | 'settings'
--        | 'renumbering', cursor
--
-- Of each request: ticket, session_id, priority, held_id, dead_ids, ip_address, ip_hash, user_agent,
-- metadata, user_id, once_ttl, invite_uses, invite_ttl, cursor. 'renumbering' says that part of the
-- queue was renumbered to make room and more has to be: nobody was enqueued, and the caller repeats
-- the request with that cursor. 'settings' says that the queue counts addresses although by_address
-- was not 1. 'mapped' says that the key or the address names a position that does not wait: the
-- caller reads it, and names it in dead_ids if it has ended. by_share = 1 says that an address has at
-- most its share of admitted + active; beyond it, positions wait.
--
-- Keeps: requests are handled one after the other, in their order. A ticket is unique and grows in
-- the order of enqueueing, whatever the clocks say; scores within a lane grow with its list; a held
-- position is found before any limit is checked; a repeated call finds the position it made.
local call, sub, max = redis.call, string.sub, math.max
local lanes = { lane0, lane1, lane2, lane3 }
local now_ms = tonumber(now_ms)

local m = call('HMGET', meta, 'status', 'max_queue_size', 'max_active', 'admission_count',
  'admission_per_seconds', 'admission_burst', 'priority_policy', 'reserved_share',
  'claim_window_seconds', 'position_ttl', 'duplicates', 'max_active_per_address', 'session_max_seconds')
if not m[1] then
  return { 'unknown_queue' }
end
local s = call('HMGET', state, 'last_ticket', 'since_normal')
local strict, ttl, most = m[7] == 'strict', m[10], num(m[2], 0)
local now_s = int(math.floor(now_ms / 1000))
local total = call('ZCARD', positions)
local last, since = num(s[1], 0), s[2]
local fields, count = 14, (#ARGV - requests) / 14
-- The last ticket if all requests succeed: reserved first, so that a script stopped half way never
-- gives a ticket twice.
local reserved = last
for i = 1, count do
  reserved = max(tonumber(ARGV[requests + 1 + (i - 1) * fields]), reserved + 1)
end
local begun, made, peak = false, 0, 0

-- Reads one request from ARGV.
local function read_request(i)
  local a = requests + (i - 1) * fields
  return {
    ticket = tonumber(ARGV[a + 1]), session_id = ARGV[a + 2], priority = tonumber(ARGV[a + 3]),
    held_id = ARGV[a + 4], dead_ids = ARGV[a + 5], ip_address = ARGV[a + 6], ip_hash = ARGV[a + 7],
    user_agent = ARGV[a + 8], metadata = ARGV[a + 9], user_id = ARGV[a + 10],
    once_ttl = tonumber(ARGV[a + 11]), uses = tonumber(ARGV[a + 12]), invite_ttl = ARGV[a + 13],
    cursor = tonumber(ARGV[a + 14]),
  }
end

local function keep_record(request)
  call('HSET', request.position, 'queue_id', queue_id, 'session_id', '', 'status', 'waiting',
    'priority', int(request.priority), 'enqueued_at', now_s, 'last_heartbeat', now_s,
    'ip_address', request.ip_address, 'ip_hash', request.ip_hash, 'user_agent', request.user_agent,
    'metadata', request.metadata, 'ticket', request.number)
  if request.user_id ~= '' then
    call('HSET', request.position, 'user_id', request.user_id)
  end
  call('EXPIRE', request.position, ttl)
  emit(events, 'position.enqueued', now_ms,
    '{"position_id":"' .. request.id .. '","priority":' .. int(request.priority) .. '}')
end

-- Requests that only append to the queue are written together.
local pending, ids, scores, beats = {}, {}, {}, {}
local function write_pending()
  if #pending == 0 then
    return
  end
  local unpack_all = unpack or table.unpack
  call('RPUSH', lanes[1], unpack_all(ids))
  call('ZADD', positions, unpack_all(scores))
  call('ZADD', heartbeat, unpack_all(beats))
  for _, request in ipairs(pending) do
    keep_record(request)
  end
  pending, ids, scores, beats = {}, {}, {}, {}
end

-- Returns the reply for a position the visitor already holds; or whether a better proof upgrades it.
local function find_held(request, counts_address)
  if call('EXISTS', request.position) == 1 then
    return { 'existing', request.id }
  end
  -- A held position is kept; a better proof moves it to a better lane.
  local upgrade = false
  if request.held then
    local h = call('HMGET', request.held, 'status', 'priority', 'queue_id', 'replaced_by')
    if h[3] == queue_id or not h[3] then
      if call('ZSCORE', positions, request.held_id) then
        if request.priority <= num(h[2], 0) then
          return { 'existing', request.held_id }
        end
        upgrade = true
      elseif call('ZSCORE', admitted, request.held_id) or h[1] == 'active' then
        return { 'existing', request.held_id }
      elseif h[4] and (call('ZSCORE', positions, h[4]) or call('ZSCORE', admitted, h[4])) then
        -- It was upgraded before, and the reply was lost or has not arrived yet.
        return { 'existing', h[4] }
      end
    end
  end
  local once = request.once and call('GET', request.once)
  local mapped = counts_address and not upgrade and call('GET', request.ipmap)
  for _, named in ipairs({ once or '', mapped or '' }) do
    if named ~= '' and not string.find(request.dead_ids, named, 1, true) then
      if call('ZSCORE', positions, named) or call('ZSCORE', admitted, named) then
        return { 'existing', named }
      end
      return { 'mapped', named }
    end
  end
  return nil, upgrade
end

-- Returns the rank a priority is promised among `total`: behind nine tenths of them, half of them,
-- nobody; and behind everybody of the same priority.
local function promised_rank(priority)
  local tenths = ({ [0] = 10, 9, 5, 0 })[priority]
  local rank, lane = math.ceil(total * tenths / 10), lanes[priority + 1]
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

-- Returns the score that puts a position where its priority belongs; or nil and the cursor to go on from.
local function score_of(request, ticket)
  local score = ticket - (strict and request.priority or request.priority == 3 and 3 or 0) * 1000000000000000
  if strict or request.priority == 0 then
    return score
  end
  local rank = promised_rank(request.priority)
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
  local highest, cursor
  score, highest, cursor = score_at(positions, rank, request.id, ticket, request.cursor)
  if highest > last then
    -- The next ticket must be higher than any score.
    last = math.ceil(highest)
    call('HSET', state, 'last_ticket', int(max(last, reserved)))
  end
  return score, cursor
end

-- Admits the first in line if both limits allow; returns the end of the admission window.
local function admit(request, score, line)
  if m[1] ~= 'active' or free_slots(m[3], admitted, active) <= 0 then
    return nil
  end
  local have, rem, last_ms = bucket(tokens, last_update, state, now_ms, rate_of(m[4], m[5], m[6]))
  if have < 1 then
    return nil
  end
  local limit = request.ip_hash ~= '' and address_limit(m[3], m[12]) or 0
  -- Without the key of the address, which a caller with old settings does not give, room/admit decides.
  if limit > 0 and (not request.address or address_full(request.address, admitted, active, limit, now_ms)) then
    return nil
  end
  local window_ms = num(m[9], 120) * 1000
  local k = { positions = positions, heartbeat = heartbeat, admitted = admitted, events = events,
    queue_id = queue_id, position_ttl = ttl }
  put_bucket(tokens, last_update, state, have - 1, rem, last_ms)
  local wait = admit_one(k, request.id, request.position, score, request.session_id, now_ms, window_ms)
  if limit > 0 then
    count_address(request.address, request.id, now_ms, m[13])
  end
  if line.share > 0 then
    since = int(tonumber(score) >= line.normal and 0 or line.since + 1)
    call('HSET', state, 'since_normal', since)
  end
  count_admitted(state, stats, now_ms, { wait })
  drop_tombstones(lanes[request.priority + 1], positions, 100)
  total = total - 1
  return int(now_ms + window_ms)
end

local function enqueue(request)
  local counts_address = m[11] == 'ip' and request.ip_hash ~= ''
  if counts_address and not request.ipmap then
    return { 'settings' }
  end
  local line = line_of(m[7], m[8], since, now_ms)
  local alone = request.held or request.once or request.invite or counts_address or request.priority > 0
    or line.share > 0 or (total == 0 and m[1] == 'active')
  if alone then
    write_pending()
  end
  local found, upgrade = find_held(request, counts_address)
  if found then
    return found
  end
  if m[1] ~= 'active' and m[1] ~= 'paused' then
    return { 'maintenance' }
  end
  if most > 0 and total >= most and not upgrade then
    return { 'full', int(total) }
  end
  if request.invite and num(call('GET', request.invite), 0) >= request.uses then
    return { 'invite_used' }
  end
  local ticket = max(request.ticket, last + 1)
  if not strict and request.priority > 0 and request.ticket <= last then
    -- The id must sort behind every older one, because equal scores are ordered by it.
    return { 'late', int(last) }
  end

  if not begun then
    call('HSET', state, 'last_ticket', int(reserved))
    begun = true
  end
  last, made = ticket, made + 1
  request.number = int(ticket)
  if not alone then
    -- The newest ticket is the highest score, so this one goes to the end.
    total = total + 1
    peak = max(peak, total)
    pending[#pending + 1], ids[#ids + 1] = request, request.id
    scores[#scores + 1], scores[#scores + 2] = request.number, request.id
    beats[#beats + 1], beats[#beats + 2] = now_s, request.id
    return { 'waiting', request.number, int(total), int(total) }
  end

  local held_score = upgrade and call('ZSCORE', positions, request.held_id)
  if upgrade then
    call('ZREM', positions, request.held_id)
    total = total - 1
  end
  local score, cursor = score_of(request, ticket)
  if not score then
    if upgrade then
      call('ZADD', positions, held_score, request.held_id)
      total = total + 1
    end
    made = made - 1
    return { 'renumbering', cursor and string.format('%.17g', cursor) or '' }
  end
  score = string.format('%.17g', score)
  if upgrade then
    call('ZREM', heartbeat, request.held_id)
    finish(request.held, 'expired', 'upgraded', now_ms, ttl)
    call('HSET', request.held, 'replaced_by', request.id)
  end
  call('RPUSH', lanes[request.priority + 1], request.id)
  call('ZADD', positions, score, request.id)
  call('ZADD', heartbeat, now_s, request.id)
  keep_record(request)
  if counts_address then
    call('SET', request.ipmap, request.id, 'EX', ttl)
  end
  if request.once then
    call('SET', request.once, request.id, 'EX', int(request.once_ttl))
  end
  if request.invite then
    call('INCR', request.invite)
    call('EXPIRE', request.invite, request.invite_ttl)
  end
  total = total + 1
  peak = max(peak, total)
  local number = shown_position(positions, line, call('ZRANK', positions, request.id), total)
  local waiting = total
  local start_by = number == 1 and admit(request, score, line)
  if start_by then
    return { 'admitted', request.number, start_by }
  end
  return { 'waiting', request.number, int(number), int(waiting) }
end

local reply, at = { 'enqueued' }, records
local function next_key(given)
  if given then
    at = at + 1
    return KEYS[at]
  end
end
for i = 1, count do
  local request = read_request(i)
  request.position = next_key(true)
  request.id = sub(request.position, -36)
  request.held = next_key(request.held_id ~= '')
  request.ipmap = next_key(by_address == '1' and request.ip_hash ~= '')
  request.address = next_key(by_share == '1' and request.ip_hash ~= '')
  request.once = next_key(request.once_ttl > 0)
  request.invite = next_key(request.uses > 0)
  local answer = enqueue(request)
  for n = 1, #answer do
    reply[#reply + 1] = answer[n]
  end
end
write_pending()
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
