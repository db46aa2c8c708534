-- sliding_charge(key, now_ms, request_id, units, limit, window_ms, _, used, oldest) -- adds units.
-- uses: add_units
-- Returns when the next unit is free (0: all are), and how many units were new.
local function sliding_charge(key, now_ms, request_id, units, limit, window_ms, _, used, oldest)
  local added = 0
  if units > 0 then
    added = add_units(key, now_ms, request_id, units)
    redis.call('PEXPIRE', key, string.format('%d', window_ms + 1000))
  end
  if used + added == 0 then return 0, added end
  return math.max(1, oldest + window_ms - now_ms), added
end
