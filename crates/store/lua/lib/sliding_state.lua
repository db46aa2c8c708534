-- sliding_state(key, now_ms, request_id, cost, limit, window_ms) -- drops units that left the window.
-- Returns the units free, those to charge, when the cost fits, and the units and oldest time held.
local function sliding_state(key, now_ms, request_id, cost, limit, window_ms)
  local oldest = tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  if oldest and oldest <= now_ms - window_ms then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now_ms - window_ms))
    oldest = tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  end
  if not oldest then return limit, cost, 0, 0, now_ms end
  local used = redis.call('ZCARD', key)
  local over = used + cost - limit
  if over <= 0 then return limit - used, cost, 0, used, oldest end
  if cost == 0 or redis.call('ZSCORE', key, request_id .. ':1') then
    return math.max(0, limit - used), 0, 0, used, oldest
  end
  -- The cost fits when the unit of this rank has left.
  local last = redis.call('ZRANGE', key, over - 1, over - 1, 'WITHSCORES')
  return limit - used, cost, math.max(1, tonumber(last[2]) + window_ms - now_ms), used, oldest
end
