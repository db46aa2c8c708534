-- store/lease_take -- take a lease that is free, or keep one's own.
--
-- KEYS   1 lease  hash  owner, token, until_ms of the present or last holder
-- ARGV   1 now_ms  2 owner  3 ttl_ms  4 keep_ms
-- REPLY  {'taken', token, until_ms} | {'busy', owner, until_ms}
--
-- Keeps: the token grows with every change of holder, also after the key was swept away, because
-- it is never less than the time in microseconds. Repeating the call changes nothing but until_ms.
local now_ms = tonumber(now_ms)
local held = redis.call('HMGET', lease, 'owner', 'token', 'until_ms')
local holder, token, until_ms = held[1], tonumber(held[2]), tonumber(held[3])
local live = holder and until_ms and until_ms > now_ms
if live and holder ~= owner then
  return {'busy', holder, string.format('%.0f', until_ms)}
end

if not live then
  local least = now_ms * 1000
  token = token and token >= least and token + 1 or least
end
local token_text = string.format('%.0f', token)
local until_text = string.format('%.0f', now_ms + tonumber(ttl_ms))
redis.call('HSET', lease, 'owner', owner, 'token', token_text, 'until_ms', until_text)
redis.call('PEXPIRE', lease, tonumber(keep_ms))
return {'taken', token_text, until_text}
