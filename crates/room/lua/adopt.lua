-- room/adopt -- gives deadlines to entries that another program wrote without one.
-- uses: emit, int
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 positions  zset    waiting positions; score = admission order
--        3 heartbeat  zset    last heartbeat, Unix seconds
--        4 active     set     ids of active sessions
--        5 deadlines  zset    active sessions; score = deadline in ms
--        6 events     stream  events of the queue
-- ARGV   1 now_ms  2 position_count  3 ..ids  (waiting positions, then sessions with the second each
--        ends by its own record, or 0)
-- REPLY  {'adopted', positions, sessions} | {'unknown_queue'}
--
-- Keeps: a deadline that exists is not moved; an id that left its set meanwhile gets none. A session
-- ends when its record says, within the queue's hard limit, or after the queue's idle time.
local now_ms, waiting = tonumber(now_ms), tonumber(position_count)
local m = redis.call('HMGET', meta, 'status', 'session_timeout_seconds', 'session_max_seconds')
if not m[1] then
  return { 'unknown_queue' }
end
local idle, most = tonumber(m[2] or '1800') * 1000, tonumber(m[3] or '14400') * 1000
local adopted, sessions = 0, 0
for i = ids + 1, ids + waiting do
  if redis.call('ZSCORE', positions, ARGV[i]) then
    adopted = adopted
      + redis.call('ZADD', heartbeat, 'NX', int(math.floor(now_ms / 1000)), ARGV[i])
  end
end
for i = ids + waiting + 1, #ARGV, 2 do
  if redis.call('SISMEMBER', active, ARGV[i]) == 1 then
    local by = tonumber(ARGV[i + 1]) * 1000
    if by <= 0 then
      by = now_ms + idle
    end
    by = math.max(now_ms, math.min(by, now_ms + most))
    sessions = sessions + redis.call('ZADD', deadlines, 'NX', int(by), ARGV[i])
  end
end
if adopted + sessions > 0 then
  emit(events, 'queue.adopted', now_ms,
    '{"positions":' .. int(adopted) .. ',"sessions":' .. int(sessions) .. '}')
end
return { 'adopted', int(adopted), int(sessions) }
