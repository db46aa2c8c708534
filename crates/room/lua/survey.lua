-- room/survey -- records a maintenance tick of a queue and returns the work that is due.
-- uses: bucket, free_slots, int, line_of, next_in_line, num, put_bucket, rate_of
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    counters, clocks
--        3 positions    zset    waiting positions; score = admission order
--        4 admitted     zset    admitted ids; score = start_by_ms
--        5 active       set     ids of active sessions
--        6 deadlines    zset    active sessions; score = deadline in ms
--        7 tokens       string  admissions the rate allows
--        8 last_update  string  Unix seconds at which the tokens were counted
--        9 ..lists      list    the four lanes, then their four spares
-- ARGV   1 now_ms  2 stall_ms  3 most
-- REPLY  {word, {next ids}, {overdue admissions}, {overdue sessions}, {waiting, list lengths…},
--        {revocations, epoch}} with word = 'survey' | 'returned' | 'unknown_queue'
--
-- Keeps: no position is lost to an outage: after a gap between ticks longer than stall_ms, deadlines
-- count from the return at the earliest ('returned'). A clock that was set back does not stop the
-- rate for as long.
local now_ms, most = tonumber(now_ms), tonumber(most)
local m = redis.call('HMGET', meta, 'status', 'max_active', 'admission_count',
  'admission_per_seconds', 'admission_burst', 'priority_policy', 'reserved_share')
if not m[1] then
  return { 'unknown_queue', {}, {}, {}, {}, { 0, 0 } }
end

local word = 'survey'
local beat = num(redis.call('HGET', state, 'beat_ms'))
if beat and now_ms - beat > tonumber(stall_ms) then
  redis.call('HSET', state, 'beat_ms', int(now_ms), 'floor_ms', int(now_ms), 'up_ms', int(now_ms))
  word = 'returned'
elseif not beat or now_ms - beat >= 1000 or now_ms < beat then
  redis.call('HSET', state, 'beat_ms', int(now_ms))
end

local waiting = redis.call('ZCARD', positions)
local late = redis.call('ZRANGEBYSCORE', admitted, '-inf', int(now_ms), 'LIMIT', '0', int(most))
local over = redis.call('ZRANGEBYSCORE', deadlines, '-inf', int(now_ms), 'LIMIT', '0', int(most))
local ids = {}
if m[1] == 'active' then
  local have, rem, last_ms, anew =
    bucket(tokens, last_update, state, now_ms, rate_of(m[3], m[4], m[5]))
  if anew then
    put_bucket(tokens, last_update, state, have, rem, last_ms)
  end
  local n = math.min(most, waiting, free_slots(m[2], admitted, active), have)
  local line = line_of(m[6], m[7], redis.call('HGET', state, 'since_normal'), now_ms)
  local order = next_in_line(positions, line, n)
  for i = 1, #order, 2 do
    ids[#ids + 1] = order[i]
  end
end
local lengths = { waiting }
for i = lists + 1, #KEYS do
  lengths[#lengths + 1] = redis.call('LLEN', KEYS[i])
end
local r = redis.call('HMGET', state, 'revocations', 'epoch')
return { word, ids, late, over, lengths, { num(r[1], 0), num(r[2], 0) } }
