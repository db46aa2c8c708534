-- room/leave -- ends a position: cancelled by the visitor or revoked by an operator.
-- uses: count_one, emit, finish
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 state      hash    counters, clocks
--        3 positions  zset    waiting positions; score = admission order
--        4 heartbeat  zset    last heartbeat, Unix seconds
--        5 admitted   zset    admitted ids; score = start_by_ms
--        6 stats      hash    counters of this hour
--        7 events     stream  events of the queue
--        8 position   hash    the position
-- ARGV   1 now_ms  2 id  3 reason  4 detail  (the operator's own word for it; empty is none)
-- REPLY  {'left'} | {'ended', status, reason} | {'active', session_id} | {'unknown'}
--        | {'unknown_queue'}
--
-- Keeps: idempotent; the slot of an admitted position is free again. An active session is not
-- touched: the caller ends it by its id. The id in the lane list becomes a
-- tombstone, dropped when it reaches the head.
local now_ms = tonumber(now_ms)
local ttl = redis.call('HGET', meta, 'position_ttl')
if not ttl then
  return { 'unknown_queue' }
end
local waits = redis.call('ZREM', positions, id)
local offered = redis.call('ZREM', admitted, id)
if waits + offered == 0 then
  local p = redis.call('HMGET', position, 'status', 'reason', 'session_id')
  if not p[1] then
    return { 'unknown' }
  elseif p[1] == 'active' then
    return { 'active', p[3] or '' }
  end
  return { 'ended', p[1], p[2] or '' }
end
redis.call('ZREM', heartbeat, id)
finish(position, 'expired', reason, now_ms, ttl)
local cancelled = reason == 'cancelled'
count_one(stats, state, cancelled and 'total_cancelled' or 'total_expired', '1')
emit(events, cancelled and 'position.cancelled' or 'position.expired', now_ms,
  '{"position_id":"' .. id .. '","reason":"' .. reason .. '"'
    .. (detail ~= '' and ',"detail":"' .. detail .. '"' or '') .. '}')
return { 'left' }
