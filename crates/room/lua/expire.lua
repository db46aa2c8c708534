-- room/expire -- expires positions whose last heartbeat is too old.
-- uses: clocks_stopped, count_one, emit, finish, int, num
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 state      hash    counters, clocks
--        3 positions  zset    waiting positions; score = admission order
--        4 heartbeat  zset    last heartbeat, Unix seconds
--        5 stats      hash    counters of this hour
--        6 events     stream  events of the queue
--        7 ..records  hash    the positions that seemed due
-- ARGV   1 now_ms  2 stall_ms  3 ..ids
-- REPLY  {'expired', n, strays} | {'stopped'} | {'unknown_queue'}
--
-- Keeps: the deadline is checked in the step that expires the position; a heartbeat or an admission
-- in between wins. Nothing expires while the clocks stand still, nor sooner than a whole hold time
-- after they went on.
local now_ms = tonumber(now_ms)
local m = redis.call('HMGET', meta, 'status', 'heartbeat_timeout_seconds', 'position_ttl')
if not m[1] then
  return { 'unknown_queue' }
end
if clocks_stopped(m[1], state, now_ms, tonumber(stall_ms)) then
  return { 'stopped' }
end
local timeout = num(m[2], 480) * 1000
if num(redis.call('HGET', state, 'floor_ms'), 0) + timeout > now_ms then
  return { 'stopped' }
end
local n, strays = 0, 0
for i = 1, #ARGV - ids do
  local id = ARGV[ids + i]
  local seen = num(redis.call('ZSCORE', heartbeat, id))
  if not redis.call('ZSCORE', positions, id) then
    redis.call('ZREM', heartbeat, id)
    strays = strays + 1
  elseif not seen or (seen + 1) * 1000 + timeout <= now_ms then
    redis.call('ZREM', positions, id)
    redis.call('ZREM', heartbeat, id)
    finish(KEYS[records + i], 'expired', 'hold_timeout', now_ms, m[3])
    emit(events, 'position.expired', now_ms,
      '{"position_id":"' .. id .. '","reason":"hold_timeout"}')
    n = n + 1
  end
end
if n > 0 then
  count_one(stats, state, 'total_expired', int(n))
end
return { 'expired', int(n), int(strays) }
