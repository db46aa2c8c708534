-- counter_state(key, now_ms, _, cost, limit, window_ms) -- reads two windows, the older weighted by its overlap.
-- uses: counter_age
-- Returns the units free, those to charge, when the cost fits, and start, units and older units.
local function counter_state(key, now_ms, _, cost, limit, window_ms)
  local stored = redis.call('HMGET', key, 'start_ms', 'now', 'before')
  local start_ms = now_ms - now_ms % window_ms
  local was, now, before = tonumber(stored[1]), tonumber(stored[2]) or 0, tonumber(stored[3]) or 0
  if not was or was < start_ms then
    before = was == start_ms - window_ms and now or 0
    now = 0
  else
    -- A window in the future is one that time stepped back from; it still counts.
    start_ms = was
  end
  local into_ms = math.max(0, now_ms - start_ms)
  local weighted = math.ceil(before * (window_ms - into_ms) / window_ms)
  local retry_ms = 0
  if now + weighted + cost > limit and cost > 0 then
    if now + cost <= limit then
      retry_ms = start_ms + counter_age(before, limit - cost - now, window_ms) - now_ms
    else
      retry_ms = start_ms + window_ms + counter_age(now, limit - cost, window_ms) - now_ms
    end
  end
  return math.max(0, limit - now - weighted), cost, retry_ms, start_ms, now, before
end
