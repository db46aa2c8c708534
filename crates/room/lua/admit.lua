-- room/admit -- admits the next positions in line, within both limits.
-- uses: address_full, address_limit, admit_one, bucket, count_address, count_admitted,
--       drop_tombstones, free_slots, int, line_of, next_in_line, num, put_bucket, rate_of
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    counters, clocks
--        3 positions    zset    waiting positions; score = admission order
--        4 lane0        list    waiting ids of priority 0
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
--       15 ..records            of each position that may be admitted, as peeked: the position, a
--                               hash; admitted positions and sessions of its address, a zset;
--                               score = time of the last check
-- ARGV   1 now_ms  2 queue_id  3 by_hand  4 skip_higher  5 skip_normal  6 ..ids
-- REPLY  {word, blocked_higher, blocked_normal, id, …} with word = 'admitted' | 'moved'
--        | {'stopped'} | {'unknown_queue'}
--
-- Of each position: id, session_id, by_address. With by_address = 1 the position stays where it is as
-- long as its address has its share of admitted + active, and those behind it are admitted; the reply
-- counts such positions, so that the caller can skip them when it peeks for more. An operator admits by
-- hand whoever is next; that counts in the share.
--
-- Keeps: admitted + active <= max_active; admissions <= burst + rate × time; only the next
-- in line at this instant are admitted, so a position peeked by two instances is admitted once.
-- 'moved' says that the order changed and the caller should peek again. A repeated call admits
-- nobody twice.
local now_ms, by_hand = tonumber(now_ms), by_hand == '1'
local m = redis.call('HMGET', meta, 'status', 'max_active', 'admission_count',
  'admission_per_seconds', 'admission_burst', 'priority_policy', 'reserved_share',
  'claim_window_seconds', 'position_ttl', 'max_active_per_address', 'session_max_seconds')
if not m[1] then
  return { 'unknown_queue' }
end
if not (m[1] == 'active' or (by_hand and m[1] == 'paused')) then
  return { 'stopped' }
end

local declared, count = {}, 0
for i = ids + 1, #ARGV, 3 do
  count = count + 1
  local record = records + 2 * count
  declared[ARGV[i]] = { position = KEYS[record - 1], session_id = ARGV[i + 1],
    address = ARGV[i + 2] == '1' and KEYS[record] }
end
local rate = rate_of(m[3], m[4], m[5])
local have, rem, last_ms = bucket(tokens, last_update, state, now_ms, rate)
local most = math.min(count, free_slots(m[2], admitted, active))
if not by_hand then
  most = math.min(most, have)
end
local line = line_of(m[6], m[7], redis.call('HGET', state, 'since_normal'), now_ms)
local order = next_in_line(positions, line, most, tonumber(skip_higher), tonumber(skip_normal))

local k = { positions = positions, heartbeat = heartbeat, admitted = admitted, events = events,
  queue_id = queue_id, position_ttl = m[9] }
local window_ms = num(m[8], 120) * 1000
local limit, full = address_limit(m[2], m[10]), {}
local word, done, waits, since = 'admitted', {}, {}, line.since
local blocked_higher, blocked_normal = 0, 0
for i = 1, #order, 2 do
  local id, score = order[i], order[i + 1]
  local d = declared[id]
  if not d then
    word = 'moved'
    break
  end
  local is_normal = line.share == 0 or tonumber(score) >= line.normal
  local address = limit > 0 and d.address
  if address and not by_hand and not full[address] then
    full[address] = address_full(address, admitted, active, limit, now_ms)
  end
  if address and full[address] then
    blocked_higher = blocked_higher + (is_normal and 0 or 1)
    blocked_normal = blocked_normal + (is_normal and 1 or 0)
  else
    waits[#waits + 1] = admit_one(k, id, d.position, score, d.session_id, now_ms, window_ms)
    done[#done + 1] = id
    if address then
      count_address(address, id, now_ms, m[11])
    end
    if line.share > 0 then
      since = is_normal and 0 or since + 1
    end
  end
end
if #waits > 0 then
  if not by_hand then
    put_bucket(tokens, last_update, state, have - #waits, rem, last_ms)
  end
  if line.share > 0 then
    redis.call('HSET', state, 'since_normal', int(math.min(since, line.share - 1)))
  end
  count_admitted(state, stats, now_ms, waits)
  for _, lane in ipairs({ lane0, lane1, lane2, lane3 }) do
    drop_tombstones(lane, positions, #waits + 100)
  end
end
local reply = { word, int(blocked_higher), int(blocked_normal) }
for i = 1, #done do
  reply[3 + i] = done[i]
end
return reply
