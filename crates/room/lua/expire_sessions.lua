-- room/expire_sessions -- expires sessions past their idle timeout or hard limit.
-- uses: clocks_stopped, close_session, count_one, int, num
--
-- KEYS   1 meta        hash    configuration and status of the queue
--        2 state       hash    counters, clocks
--        3 active      set     ids of active sessions
--        4 deadlines   zset    active sessions; score = deadline in ms
--        5 stats       hash    counters of this hour
--        6 events      stream  events of the queue
--        7 ..sessions  hash    session and position of each, in turn
-- ARGV   1 now_ms  2 stall_ms  3 ..ids
-- REPLY  {'expired', n} | {'stopped'} | {'unknown_queue'}
--
-- Keeps: the deadline is checked in the step that ends the session; activity in between wins. After
-- an outage every session has a whole idle time again, a provisional one its short one.
local now_ms = tonumber(now_ms)
local m = redis.call('HMGET', meta, 'session_timeout_seconds', 'position_ttl',
  'provisional_timeout_seconds')
if not m[2] then
  return { 'unknown_queue' }
end
if clocks_stopped('active', state, now_ms, tonumber(stall_ms)) then
  return { 'stopped' }
end
local up_ms = num(redis.call('HGET', state, 'up_ms'), 0)
local idle_ms = num(m[1], 1800) * 1000
local short_ms = math.min(idle_ms, num(m[3], 60) * 1000)
if up_ms + short_ms > now_ms then
  return { 'stopped' }
end
local k = { active = active, deadlines = deadlines, events = events, position_ttl = m[2] }
local n = 0
for i = 1, #ARGV - ids do
  local session_id = ARGV[ids + i]
  local session, position = KEYS[sessions + 2 * i - 1], KEYS[sessions + 2 * i]
  local by = num(redis.call('ZSCORE', deadlines, session_id))
  local s = redis.call('HMGET', session, 'hard_until_ms', 'provisional')
  local back_ms = up_ms + (s[2] == '1' and short_ms or idle_ms)
  if by and by <= now_ms and back_ms <= now_ms then
    local hard = num(s[1], by + 1)
    local reason = hard <= now_ms and 'session_cap' or 'session_idle'
    close_session(k, session, session_id, position,
      { session = 'expired', position = 'expired', reason = reason, event = 'session.expired' },
      now_ms)
    n = n + 1
  end
end
if n > 0 then
  count_one(stats, state, 'total_sessions_expired', int(n))
end
return { 'expired', int(n) }
