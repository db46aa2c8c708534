-- calendar_charge(key, now_ms, _, units, limit, _, _, used, start_ms, end_ms) -- counts units.
-- Returns when the period ends (0: nothing is used), and the units.
local function calendar_charge(key, now_ms, _, units, limit, _, _, used, start_ms, end_ms)
  local left_ms = math.max(1, end_ms - now_ms)
  if units > 0 and used > 0 then
    -- The period is stored, and so is its TTL.
    redis.call('HINCRBY', key, 'used', string.format('%d', units))
  elseif units > 0 then
    redis.call('HSET', key, 'start_ms', string.format('%d', start_ms),
      'end_ms', string.format('%d', end_ms), 'used', string.format('%d', units))
    redis.call('PEXPIRE', key, string.format('%d', left_ms + 1000))
  end
  if used + units == 0 then return 0, units end
  return left_ms, units
end
