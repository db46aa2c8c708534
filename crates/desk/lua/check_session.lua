-- desk/check_session -- check a session's token and its user's status, and touch both.
-- uses: user_state
--
-- KEYS   1 user      hash  the user, as the schema has it
--        2 record    hash  status that outlives the user's hash
--        3 sessions  zset  session ids of the user; score = when opened, in ms
--        4 session   hash  the session
-- ARGV   1 now_ms  2 session_id  3 token_hash  4 idle_ms  5 max_ms  6 touch_ms
-- REPLY  {'valid', token_hash, status} | {'blocked', token_hash, reason, until_ms} | {'unknown'}
--
-- The caller compares the hash once more, in constant time.
--
-- Keeps: nothing is revived. A session counts while it is in the user's list, the user's hash is
-- there (deleting it is the schema's logout) and neither deadline has passed. It is touched at most
-- once per touch_ms.
local now_ms, idle_ms = tonumber(now_ms), tonumber(idle_ms)
local stored = redis.call('HMGET', session, 'token_hash', 'opened_ms', 'seen_ms')
if not stored[1] or stored[1] ~= token_hash then return {'unknown'} end
if not redis.call('ZSCORE', sessions, session_id) then return {'unknown'} end
local opened_ms, seen_ms = tonumber(stored[2]), tonumber(stored[3])
local left_ms = math.min(idle_ms, opened_ms + tonumber(max_ms) - now_ms)
if now_ms >= seen_ms + idle_ms or left_ms <= 0 then
  redis.call('ZREM', sessions, session_id)
  redis.call('DEL', session)
  return {'unknown'}
end
local status, reason, until_ms, exists = user_state()
if not exists then
  redis.call('ZREM', sessions, session_id)
  redis.call('DEL', session)
  return {'unknown'}
end
if status == 'blocked' then return {'blocked', stored[1], reason, until_ms} end
if now_ms - seen_ms >= tonumber(touch_ms) then
  local now = string.format('%.0f', now_ms)
  redis.call('HSET', session, 'seen_ms', now)
  redis.call('PEXPIRE', session, string.format('%.0f', left_ms))
  redis.call('HSET', user, 'last_seen', now)
  redis.call('PEXPIRE', user, string.format('%.0f', idle_ms))
end
return {'valid', stored[1], status}
