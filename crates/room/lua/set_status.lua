-- room/set_status -- resumes, pauses or closes a queue.
-- uses: bucket, emit, int, put_bucket, rate_of
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    counters, clocks
--        3 tokens       string  admissions the rate allows
--        4 last_update  string  Unix seconds at which the tokens were counted
--        5 events       stream  events of the queue
-- ARGV   1 now_ms  2 status
-- REPLY  {'changed', before} | {'same'} | {'unknown_queue'}
--
-- Keeps: time that passes while the queue is not active adds nothing to the rate and takes nothing
-- from anybody's hold or admission window.
local now_ms = tonumber(now_ms)
local m = redis.call('HMGET', meta, 'status', 'admission_count', 'admission_per_seconds',
  'admission_burst')
if not m[1] then
  return { 'unknown_queue' }
end
if m[1] == status then
  return { 'same' }
end
local have, rem, last_ms = bucket(tokens, last_update, state, now_ms, rate_of(m[2], m[3], m[4]))
if m[1] == 'active' then
  put_bucket(tokens, last_update, state, have, rem, last_ms)
end
if status == 'active' then
  redis.call('SET', last_update, string.format('%.3f', now_ms / 1000))
  redis.call('HSET', state, 'floor_ms', int(now_ms))
else
  redis.call('HSET', state, 'stopped_ms', int(now_ms))
end
redis.call('HSET', meta, 'status', status, 'updated_at', int(math.floor(now_ms / 1000)))
redis.call('HINCRBY', meta, 'version', '1')
local kinds = { active = 'queue.resumed', paused = 'queue.paused', maintenance = 'queue.maintenance' }
emit(events, kinds[status] or 'queue.updated', now_ms, '{"status":"' .. status .. '"}')
return { 'changed', m[1] }
