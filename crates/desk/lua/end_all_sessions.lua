-- desk/end_all_sessions -- log a user out everywhere at once.
--
-- KEYS   1 user      hash  the user, as the schema has it
--        2 sessions  zset  session ids of the user
-- ARGV   1 most
-- REPLY  {'ended', then the ids of the sessions that were in the list}
--
-- Keeps: from here on none of them counts; what is left of them is deleted by the caller.
local ids = redis.call('ZRANGE', sessions, 0, tonumber(most) - 1)
redis.call('DEL', sessions, user)
table.insert(ids, 1, 'ended')
return ids
