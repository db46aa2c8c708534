-- room/peek -- returns the positions that would be admitted now, so that room/admit can name their keys.
-- uses: bucket, free_slots, line_of, next_in_line, rate_of
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    counters, clocks
--        3 positions    zset    waiting positions; score = admission order
--        4 admitted     zset    admitted ids; score = start_by_ms
--        5 active       set     ids of active sessions
--        6 tokens       string  admissions the rate allows
--        7 last_update  string  Unix seconds at which the tokens were counted
-- ARGV   1 now_ms  2 most  3 by_hand  4 skip_higher  5 skip_normal
-- REPLY  {'next', id, …} | {'unknown_queue'}
--
-- Keeps: reads only. At most `most` ids, no more than both limits allow; by_hand = 1 leaves the
-- rate out of it. The skipped are those whose address has its share (room/admit).
local now_ms, most, by_hand = tonumber(now_ms), tonumber(most), by_hand == '1'
local m = redis.call('HMGET', meta, 'status', 'max_active', 'admission_count',
  'admission_per_seconds', 'admission_burst', 'priority_policy', 'reserved_share')
if not m[1] then
  return { 'unknown_queue' }
end
if not (m[1] == 'active' or (by_hand and m[1] == 'paused')) then
  return { 'next' }
end
most = math.min(most, redis.call('ZCARD', positions), free_slots(m[2], admitted, active))
if most > 0 and not by_hand then
  most = math.min(most, (bucket(tokens, last_update, state, now_ms, rate_of(m[3], m[4], m[5]))))
end
local line = line_of(m[6], m[7], redis.call('HGET', state, 'since_normal'), now_ms)
local order = next_in_line(positions, line, most, tonumber(skip_higher), tonumber(skip_normal))
local reply = { 'next' }
for i = 1, #order, 2 do
  reply[#reply + 1] = order[i]
end
return reply
