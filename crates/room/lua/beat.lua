-- room/beat -- the service is there. After a gap every clock gets a fresh start.
--
-- KEYS   1 meta   hash  configuration and status of the queue
--        2 state  hash  counters, clocks
-- ARGV   1 now_ms  2 stall_ms
-- REPLY  {'fresh'} | {'beat'} | {'returned', gap_ms} | {'unknown_queue'}
--
-- Keeps: nobody loses a place to an outage: deadlines count from the return at the earliest.
local meta, state = KEYS[1], KEYS[2]
local now_ms = tonumber(ARGV[1])
if redis.call('EXISTS', meta) == 0 then
  return { 'unknown_queue' }
end
local beat = num(redis.call('HGET', state, 'beat_ms'))
if beat and now_ms - beat > tonumber(ARGV[2]) then
  redis.call('HSET', state, 'beat_ms', int(now_ms), 'floor_ms', int(now_ms), 'up_ms', int(now_ms))
  return { 'returned', int(now_ms - beat) }
end
if not beat or now_ms - beat >= 1000 or now_ms < beat then
  redis.call('HSET', state, 'beat_ms', int(now_ms))
  return { 'beat' }
end
return { 'fresh' }
