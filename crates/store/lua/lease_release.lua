-- store/lease_release -- give a lease back before it runs out.
--
-- KEYS   1 lease  hash  owner, token, until_ms of the present or last holder
-- ARGV   1 owner  2 token
-- REPLY  {'released'} | {'lost'}
--
-- Keeps: the token stays, so that the next holder's is greater. Repeating the call changes nothing.
local held = redis.call('HMGET', lease, 'owner', 'token')
if held[2] ~= token or (held[1] and held[1] ~= owner) then
  return {'lost'}
end

redis.call('HDEL', lease, 'owner', 'until_ms')
return {'released'}
