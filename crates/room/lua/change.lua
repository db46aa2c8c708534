-- room/change -- changes the settings of a queue.
-- uses: bucket, drop_tombstones, emit, int, num, put_bucket, rate_of
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    counters, clocks
--        3 positions    zset    waiting positions; score = admission order
--        4 lane1        list    waiting ids of priority 1
--        5 lane2        list    priority 2
--        6 lane3        list    priority 3
--        7 tokens       string  admissions the rate allows
--        8 last_update  string  Unix seconds at which the tokens were counted
--        9 events       stream  events of the queue
-- ARGV   1 now_ms  2 expected_version  3 policy  4 ..fields  (name, value of each)
-- REPLY  {'changed', version} | {'conflict', version} | {'priority_in_use'} | {'unknown_queue'}
--
-- Keeps: time before the change counts at the old rate; the priority policy changes only while
-- nobody with a priority above 0 waits, because the scores of two policies do not mix.
local now_ms = tonumber(now_ms)
local m = redis.call('HMGET', meta, 'status', 'version', 'admission_count', 'admission_per_seconds',
  'admission_burst', 'priority_policy')
if not m[1] then
  return { 'unknown_queue' }
end
if expected_version ~= '' and expected_version ~= m[2] then
  return { 'conflict', m[2] or '0' }
end
if policy ~= '' and policy ~= m[6] then
  for _, lane in ipairs({ lane1, lane2, lane3 }) do
    drop_tombstones(lane, positions, 10000)
    if redis.call('LLEN', lane) > 0 then
      return { 'priority_in_use' }
    end
  end
end
if m[1] == 'active' or num(m[3], 1) == 0 then
  local have, rem, last_ms = bucket(tokens, last_update, state, now_ms, rate_of(m[3], m[4], m[5]))
  put_bucket(tokens, last_update, state, have, rem, last_ms)
end
for i = fields + 1, #ARGV, 2 do
  redis.call('HSET', meta, ARGV[i], ARGV[i + 1])
end
if redis.call('HGET', meta, 'admission_per_seconds') ~= m[4] then
  redis.call('HSET', state, 'rem', '0')
end
redis.call('HSET', meta, 'updated_at', int(math.floor(now_ms / 1000)))
local version = redis.call('HINCRBY', meta, 'version', '1')
emit(events, 'queue.updated', now_ms, '{"version":' .. int(version) .. '}')
return { 'changed', int(version) }
