-- room/touch -- records activity of a session, which renews it up to its hard limit.
-- uses: int, num
--
-- KEYS   1 meta        hash    configuration and status of the queue
--        2 state       hash    epoch, counters, clocks
--        3 active      set     ids of active sessions
--        4 deadlines   zset    active sessions; score = deadline in ms
--        5 session     hash    the session
--        6 revocation  string  exists while the session's token is void
-- ARGV   1 now_ms  2 session_id  3 page_views  4 epoch (of the pass shown; empty if none was)
-- REPLY  {'active', expires_ms, hard_ms, page_views, proven} | {'ended', status, reason} | {'revoked'}
--        | {'unknown'} | {'unknown_queue'}
--
-- Keeps: a session that ended stays ended; the hard limit never moves. A provisional session stays
-- short until a pass is shown: that proves that the visitor keeps cookies, and proven = 1.
local now_ms = tonumber(now_ms)
local m = redis.call('HMGET', meta, 'session_timeout_seconds', 'session_renewal', 'session_ttl',
  'provisional_timeout_seconds')
if not m[3] then
  return { 'unknown_queue' }
end
if epoch ~= '' then
  if tonumber(epoch) < num(redis.call('HGET', state, 'epoch'), 0)
    or redis.call('EXISTS', revocation) == 1 then
    return { 'revoked' }
  end
end
local s = redis.call('HMGET', session, 'status', 'reason', 'hard_until_ms', 'provisional', 'started_at')
if not s[1] then
  return { 'unknown' }
end
if redis.call('SISMEMBER', active, session_id) == 0 then
  return { 'ended', s[1], s[2] or '' }
end
local hard_ms = num(s[3], now_ms)
local until_ms = num(redis.call('ZSCORE', deadlines, session_id), now_ms)
local idle_s, from_ms = num(m[1], 1800), now_ms
local proven = s[4] == '1' and epoch ~= ''
if s[4] == '1' and not proven then
  idle_s = math.min(idle_s, num(m[4], 60))
end
if m[2] == '0' then
  from_ms = num(s[5], 0) * 1000
end
if m[2] ~= '0' or proven then
  until_ms = math.min(math.max(until_ms, from_ms + idle_s * 1000), hard_ms)
end
if proven then
  redis.call('HDEL', session, 'provisional')
end
redis.call('HSET', session, 'last_activity', int(math.floor(now_ms / 1000)),
  'expires_at', int(math.floor(until_ms / 1000)))
local views = redis.call('HINCRBY', session, 'page_views', page_views)
redis.call('EXPIRE', session, m[3])
redis.call('ZADD', deadlines, int(until_ms), session_id)
return { 'active', int(until_ms), int(hard_ms), int(views), proven and '1' or '0' }
