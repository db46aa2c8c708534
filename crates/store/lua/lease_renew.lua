-- store/lease_renew -- hold a lease for longer, if it is still held.
--
-- KEYS   1 lease  hash  owner, token, until_ms of the present or last holder
-- ARGV   1 now_ms  2 owner  3 token  4 ttl_ms  5 keep_ms
-- REPLY  {'renewed', until_ms} | {'lost'}
--
-- Keeps: a lease that ran out is not revived, even if nobody took it since.
local now_ms = tonumber(now_ms)
local held = redis.call('HMGET', lease, 'owner', 'token', 'until_ms')
local until_ms = tonumber(held[3])
if held[1] ~= owner or held[2] ~= token or not until_ms or until_ms <= now_ms then
  return {'lost'}
end

local until_text = string.format('%.0f', now_ms + tonumber(ttl_ms))
redis.call('HSET', lease, 'until_ms', until_text)
redis.call('PEXPIRE', lease, tonumber(keep_ms))
return {'renewed', until_text}
