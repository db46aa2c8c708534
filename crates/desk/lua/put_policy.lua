-- desk/put_policy -- store a policy and tell all instances.
--
-- KEYS   1 policies  hash    name of a policy to its JSON
--        2 version   string  number of the last change
-- ARGV   1 name  2 json  3 most
-- REPLY  {'created'} | {'changed'} | {'full'}
--
-- Keeps: at most `most` policies; the version grows with every change.
if redis.call('HEXISTS', policies, name) == 0 and redis.call('HLEN', policies) >= tonumber(most) then
  return {'full'}
end
local created = redis.call('HSET', policies, name, json)
redis.call('INCR', version)
if created == 1 then return {'created'} end
return {'changed'}
