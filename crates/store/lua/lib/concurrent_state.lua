-- concurrent_state(key, now_ms, request_id, cost, limit) -- drops leases that have expired.
-- Returns the units free, those to charge, when the cost fits if nobody renews, the units held and
-- when the first lease expires.
local function concurrent_state(key, now_ms, request_id, cost, limit)
  local first = tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  if first and first <= now_ms then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now_ms))
    first = tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  end
  if not first then return limit, cost, 0, 0, 0 end
  local used = redis.call('ZCARD', key)
  local over = used + cost - limit
  if over <= 0 then return limit - used, cost, 0, used, first end
  if cost == 0 or redis.call('ZSCORE', key, request_id .. ':1') then
    return math.max(0, limit - used), 0, 0, used, first
  end
  local last = redis.call('ZRANGE', key, over - 1, over - 1, 'WITHSCORES')
  return limit - used, cost, tonumber(last[2]) - now_ms, used, first
end
