-- desk/read_user -- tell what is known of a user, without counting as a request of theirs.
-- uses: user_state
--
-- KEYS   1 user      hash  the user, as the schema has it
--        2 record    hash  status that outlives the user's hash
--        3 sessions  zset  session ids of the user
-- ARGV   1 now_ms
-- REPLY  {'known', status, reason, until_ms, device_id, login_time, last_seen, ip_address, sessions} | {'unknown'}
--
-- Keeps: nothing is touched.
local status, reason, until_ms, exists = user_state()
if not exists and status ~= 'blocked' then return {'unknown'} end
local stored = redis.call('HMGET', user, 'device_id', 'login_time', 'last_seen', 'ip_address')
local reply = {'known', status, reason, until_ms}
for index = 1, 4 do reply[#reply + 1] = stored[index] or '' end
reply[#reply + 1] = string.format('%.0f', redis.call('ZCARD', sessions))
return reply
