-- desk/end_session -- end one session of a user; with the last one the user's hash goes.
--
-- KEYS   1 user      hash  the user, as the schema has it
--        2 sessions  zset  session ids of the user
--        3 session   hash  the session
-- ARGV   1 session_id
-- REPLY  {'ended'} | {'unknown'}
--
-- Keeps: a session that is not in the list does not count, whatever is left of it.
local was = redis.call('ZREM', sessions, session_id)
redis.call('DEL', session)
if was == 0 then return {'unknown'} end
if redis.call('EXISTS', sessions) == 0 then redis.call('DEL', user) end
return {'ended'}
