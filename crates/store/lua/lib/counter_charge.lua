-- counter_charge(key, now_ms, _, units, limit, window_ms, _, start_ms, now, before) -- counts units.
-- uses: counter_age
-- Returns when the next unit is free (0: all are), and the units.
local function counter_charge(key, now_ms, _, units, limit, window_ms, _, start_ms, now, before)
  if units > 0 and now > 0 then
    -- The window is stored, and so is its TTL.
    redis.call('HINCRBY', key, 'now', units == 1 and '1' or string.format('%d', units))
  elseif units > 0 then
    redis.call('HSET', key, 'start_ms', string.format('%d', start_ms),
      'now', string.format('%d', units), 'before', string.format('%d', before))
    redis.call('PEXPIRE', key, string.format('%d', start_ms + window_ms * 2 - now_ms + 1000))
  end
  now = now + units
  local weighted = 0
  if before > 0 then
    local into_ms = math.max(0, now_ms - start_ms)
    weighted = math.ceil(before * (window_ms - into_ms) / window_ms)
  end
  if now + weighted == 0 then return 0, units end
  -- The units of the last window that may count when one more is free; more than the limit may be
  -- counted after the clock stepped back or the limit was lowered.
  local may = math.min(weighted - 1, limit - now - 1)
  if weighted > 0 and may >= 0 then
    return math.max(1, start_ms + counter_age(before, may, window_ms) - now_ms), units
  end
  may = math.min(now - 1, limit - 1)
  return math.max(1, start_ms + window_ms + counter_age(now, may, window_ms) - now_ms), units
end
