-- room/end_session -- ends one session: completed or revoked.
-- uses: close_session, count_one, int, num
--
-- KEYS   1 meta        hash    configuration and status of the queue
--        2 state       hash    counters, clocks
--        3 active      set     ids of active sessions
--        4 deadlines   zset    active sessions; score = deadline in ms
--        5 stats       hash    counters of this hour
--        6 events      stream  events of the queue
--        7 session     hash    the session
--        8 position    hash    its position
--        9 revocation  string  why the session's token is void
-- ARGV   1 now_ms  2 session_id  3 session_status  4 position_status  5 reason  6 event  7 counter
--        8 void  9 detail  (the operator's own word for the reason; empty is none)
-- REPLY  {'ended'} | {'over', status, reason} | {'unknown'} | {'unknown_queue'}
--
-- Keeps: a session ends once; the slot is free in the same step; the token is void until the last
-- instant any copy of it could be valid. The last 64 sessions ended with void = 1 are in state
-- (revoked_0 … revoked_63; revocations counts them all), so that every instance hears of them.
local now_ms = tonumber(now_ms)
local ttl = redis.call('HGET', meta, 'position_ttl')
if not ttl then
  return { 'unknown_queue' }
end
local s = redis.call('HMGET', session, 'status', 'reason', 'hard_until_ms')
if redis.call('SISMEMBER', active, session_id) == 0 then
  redis.call('ZREM', deadlines, session_id)
  if not s[1] then
    return { 'unknown' }
  end
  return { 'over', s[1], s[2] or '' }
end
local k = { active = active, deadlines = deadlines, events = events, position_ttl = ttl }
close_session(k, session, session_id, position,
  { session = session_status, position = position_status, reason = reason, event = event, detail = detail },
  now_ms)
count_one(stats, state, counter, '1')
if void == '1' then
  local left = math.max(0, num(s[3], now_ms) - now_ms)
  local n = redis.call('HINCRBY', state, 'revocations', '1')
  redis.call('HSET', state, 'revoked_' .. int(n % 64), session_id)
  redis.call('SET', revocation, detail ~= '' and detail or reason, 'EX', int(math.floor(left / 1000) + 60))
end
return { 'ended' }
