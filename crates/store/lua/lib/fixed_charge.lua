-- fixed_charge(key, now_ms, request_id, units, limit, window_ms, _, used, start_ms, closed) -- adds units.
-- uses: add_units
-- Returns when the window closes (0: it is not open), and how many units were new.
local function fixed_charge(key, now_ms, request_id, units, limit, window_ms, _, used, start_ms, closed)
  local left_ms, added = start_ms + window_ms - now_ms, 0
  if units > 0 then
    -- After a step back of the clock a unit must not open the window earlier than it was.
    added = add_units(key, math.max(now_ms, start_ms), request_id, units)
    -- Set when the window opens. Another program may have opened it without: looked after now and then.
    if closed > 0 or used % 8 == 0 then
      redis.call('PEXPIRE', key, string.format('%d', left_ms + 1000))
    end
  end
  if used + added == 0 then return 0, added end
  return left_ms, added
end
