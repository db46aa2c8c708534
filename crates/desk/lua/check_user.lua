-- desk/check_user -- check a user whose login another program keeps in the user's hash, and touch it.
-- uses: user_state
--
-- KEYS   1 user    hash  the user, as the schema has it
--        2 record  hash  status that outlives the user's hash
-- ARGV   1 now_ms  2 idle_ms  3 touch_ms
-- REPLY  {'valid', status} | {'blocked', reason, until_ms} | {'unknown'}
--
-- Keeps: a hash without device_id is no login, as in the schema's example; nothing is revived. A hash
-- that its writer left without a TTL gets one.
local now_ms = tonumber(now_ms)
local status, reason, until_ms = user_state()
if status == 'blocked' then return {'blocked', reason, until_ms} end
local stored = redis.call('HMGET', user, 'device_id', 'last_seen')
if not stored[1] or stored[1] == '' then return {'unknown'} end
local seen_ms = tonumber(stored[2] or '')
if seen_ms and now_ms >= seen_ms + tonumber(idle_ms) then
  redis.call('DEL', user)
  return {'unknown'}
end
if not seen_ms or now_ms - seen_ms >= tonumber(touch_ms) then
  redis.call('HSET', user, 'last_seen', string.format('%.0f', now_ms))
  redis.call('PEXPIRE', user, idle_ms)
elseif redis.call('PTTL', user) < 0 then
  redis.call('PEXPIRE', user, idle_ms)
end
return {'valid', status}
