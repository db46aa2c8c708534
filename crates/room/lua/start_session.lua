-- room/start_session -- starts the session of an admitted position.
-- uses: address_full, address_limit, count_address, count_one, emit, int, num
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 state      hash    counters, clocks
--        3 positions  zset    waiting positions; score = admission order
--        4 admitted   zset    admitted ids; score = start_by_ms
--        5 active     set     ids of active sessions
--        6 deadlines  zset    active sessions; score = deadline in ms
--        7 stats      hash    counters of this hour
--        8 events     stream  events of the queue
--        9 position   hash    the position
--       10 session    hash    the session to start
--       11 address    zset    admitted positions and sessions of the visitor's address; score =
--                             time of the last check
-- ARGV   1 now_ms  2 queue_id  3 id  4 session_id  5 user_id  6 ip_address  7 user_agent  8 token
--        9 priority  10 by_address  11 provisional
-- REPLY  {'started', session_id, expires_ms, hard_ms} | {'active', session_id}
--        | {'moved', session_id} | {'waiting'} | {'ended', status, reason} | {'unknown'}
--        | {'address_full', limit} | {'unknown_queue'}
--
-- Keeps: one session per position; a repeated call finds the first session (idempotent). Admitted + active does not
-- change. 'moved' says that the position was admitted under another session id than the caller read.
-- With by_address = 1, an address has at most its share of admitted + active; a position admitted
-- from the same address is counted already, and its session takes its part. With provisional = 1 the
-- session is short until its pass comes back once (room/touch).
local now_ms = tonumber(now_ms)
local by_address, provisional = by_address == '1', provisional == '1'
local m = redis.call('HMGET', meta, 'session_timeout_seconds', 'session_max_seconds', 'session_ttl',
  'max_active', 'max_active_per_address', 'provisional_timeout_seconds')
if not m[3] then
  return { 'unknown_queue' }
end
local p = redis.call('HMGET', position, 'status', 'reason', 'session_id', 'user_id')
if not redis.call('ZSCORE', admitted, id) then
  if redis.call('ZSCORE', positions, id) then
    return { 'waiting' }
  elseif not p[1] then
    return { 'unknown' }
  elseif p[1] == 'active' then
    return { 'active', p[3] or '' }
  end
  return { 'ended', p[1], p[2] or '' }
end
if p[3] and p[3] ~= '' and p[3] ~= session_id then
  return { 'moved', p[3] }
end
local limit = address_limit(m[4], m[5])
if by_address and not redis.call('ZSCORE', address, id)
  and address_full(address, admitted, active, limit, now_ms) then
  return { 'address_full', int(limit) }
end
local hard_s = num(m[2], 14400)
local hard_ms = now_ms + hard_s * 1000
local idle_s = num(m[1], 1800)
if provisional then
  idle_s = math.min(idle_s, num(m[6], 60))
end
local until_ms = math.min(now_ms + idle_s * 1000, hard_ms)
local now_s = int(math.floor(now_ms / 1000))
redis.call('ZREM', admitted, id)
redis.call('SADD', active, session_id)
redis.call('ZADD', deadlines, int(until_ms), session_id)
redis.call('HSET', session, 'queue_id', queue_id, 'position_id', id, 'user_id', user_id ~= '' and user_id or p[4] or '',
  'ip_address', ip_address, 'user_agent', user_agent, 'token', token, 'started_at', now_s,
  'expires_at', int(math.floor(until_ms / 1000)), 'last_activity', now_s, 'page_views', '0',
  'status', 'active', 'hard_until_ms', int(hard_ms), 'priority', priority)
if provisional then
  redis.call('HSET', session, 'provisional', '1')
end
redis.call('EXPIRE', session, m[3])
if by_address and limit > 0 then
  redis.call('ZREM', address, id)
  count_address(address, session_id, now_ms, m[2])
end
redis.call('HSET', position, 'queue_id', queue_id, 'status', 'active', 'session_id', session_id)
redis.call('EXPIRE', position, int(hard_s + 3600))
count_one(stats, state, 'total_claimed', '1')
emit(events, 'session.started', now_ms,
  '{"session_id":"' .. session_id .. '","position_id":"' .. id .. '"}')
return { 'started', session_id, int(until_ms), int(hard_ms) }
