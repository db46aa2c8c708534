-- calendar_state(key, now_ms, _, cost, limit, start_ms, end_ms) -- reads the period that start and end enclose.
-- Returns the units free, those to charge, when the cost fits, the units used, the period's start
-- and its end.
local function calendar_state(key, now_ms, _, cost, limit, start_ms, end_ms)
  local stored = redis.call('HMGET', key, 'start_ms', 'end_ms', 'used')
  local was, used = tonumber(stored[1]), 0
  if was and was >= start_ms then
    -- A later period is one that time stepped back from; it still counts.
    if was > start_ms then end_ms = tonumber(stored[2]) or end_ms end
    start_ms, used = was, tonumber(stored[3]) or 0
  end
  local free = math.max(0, limit - used)
  return free, cost, cost > free and math.max(1, end_ms - now_ms) or 0, used, start_ms, end_ms
end
