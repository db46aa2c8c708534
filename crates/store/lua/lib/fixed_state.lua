-- fixed_state(key, now_ms, request_id, cost, limit, window_ms) -- drops windows that have closed.
-- A window opens with its first unit, the member with the lowest score. Returns the units free,
-- those to charge, when the cost fits, the units held, when the window opened, and how many had closed.
local function fixed_state(key, now_ms, request_id, cost, limit, window_ms)
  local start_ms = tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
  -- One closed window is the rule; another program that never drops its units may leave more.
  local closed = 0
  while start_ms and start_ms + window_ms <= now_ms do
    closed = closed + 1
    if closed > 8 then
      redis.call('DEL', key)
      start_ms = nil
    else
      redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('(%d', start_ms + window_ms))
      start_ms = tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2])
    end
  end
  if not start_ms then return limit, cost, 0, 0, now_ms, closed end
  local used = redis.call('ZCARD', key)
  if used + cost <= limit then return limit - used, cost, 0, used, start_ms, closed end
  if cost == 0 or redis.call('ZSCORE', key, request_id .. ':1') then
    return math.max(0, limit - used), 0, 0, used, start_ms, closed
  end
  return limit - used, cost, start_ms + window_ms - now_ms, used, start_ms, closed
end
