-- store/limit_renew -- renew a lease of a concurrent limit.
--
-- KEYS   1 limit  zset  a member per leased unit; score = when the lease expires, in ms
-- ARGV   1 now_ms  2 request_id  3 units  4 lease_ms
-- REPLY  {'renewed'} | {'expired'}
--
-- Keeps: a lease that expired, in whole or in part, is not brought back.
local now_ms, units, lease_ms = tonumber(now_ms), tonumber(units), tonumber(lease_ms)
for unit = 1, units do
  local until_ms = redis.call('ZSCORE', limit, request_id .. ':' .. string.format('%.0f', unit))
  if not until_ms or tonumber(until_ms) <= now_ms then return {'expired'} end
end
for unit = 1, units do
  redis.call('ZADD', limit, 'XX', string.format('%.0f', now_ms + lease_ms),
    request_id .. ':' .. string.format('%.0f', unit))
end
local last = tonumber(redis.call('ZRANGE', limit, -1, -1, 'WITHSCORES')[2])
redis.call('PEXPIRE', limit, string.format('%.0f', last - now_ms + 1000))
return {'renewed'}
