-- desk/remove_policy -- remove a stored policy and tell all instances.
--
-- KEYS   1 policies  hash    name of a policy to its JSON
--        2 version   string  number of the last change
-- ARGV   1 name
-- REPLY  {'removed'} | {'unknown'}
--
-- Keeps: the version grows with every change.
if redis.call('HDEL', policies, name) == 0 then return {'unknown'} end
redis.call('INCR', version)
return {'removed'}
