-- desk/open_session -- open a session for a user, unless the user is blocked.
-- uses: user_state
--
-- KEYS   1 user      hash  the user, as the schema has it
--        2 record    hash  status that outlives the user's hash
--        3 sessions  zset  session ids of the user; score = when opened, in ms
--        4 session   hash  the new session
-- ARGV   1 now_ms  2 session_id  3 token_hash  4 device_id  5 ip_address  6 idle_ms  7 max_ms  8 most  9 replaces
-- REPLY  {'opened', then ids of sessions that ended for it} | {'blocked', reason, until_ms}
--
-- Keeps: every key has a TTL from its first write on; a user has at most `most` sessions, the oldest
-- end first; `replaces`, if it names one, ends. Made again with the same ids it changes nothing.
local now_ms = tonumber(now_ms)
local status, reason, until_ms = user_state()
if status == 'blocked' then return {'blocked', reason, until_ms} end

local now = string.format('%.0f', now_ms)
local reply = {'opened'}
redis.call('ZREMRANGEBYSCORE', sessions, '-inf', string.format('%.0f', now_ms - tonumber(max_ms)))
if replaces ~= '' and redis.call('ZREM', sessions, replaces) == 1 then reply[2] = replaces end
redis.call('ZADD', sessions, 'NX', now, session_id)
local over = redis.call('ZCARD', sessions) - tonumber(most)
if over > 0 then
  for _, id in ipairs(redis.call('ZRANGE', sessions, 0, over - 1)) do
    redis.call('ZREM', sessions, id)
    reply[#reply + 1] = id
  end
end
redis.call('PEXPIRE', sessions, max_ms)
redis.call('HSET', session, 'token_hash', token_hash, 'device_id', device_id, 'ip_address', ip_address,
  'opened_ms', now, 'seen_ms', now)
redis.call('PEXPIRE', session, idle_ms)
redis.call('HSET', user, 'device_id', device_id, 'login_time', now, 'last_seen', now,
  'status', 'login', 'active', 'true')
if ip_address == '' then
  redis.call('HDEL', user, 'ip_address')
else
  redis.call('HSET', user, 'ip_address', ip_address)
end
redis.call('PEXPIRE', user, idle_ms)
return reply
