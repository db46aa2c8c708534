-- bucket_charge(key, now_ms, _, units, count, per_ms, burst, credits, at_ms) -- takes units.
-- Returns when the next unit is free (0: all are), and the units.
local function bucket_charge(key, now_ms, _, units, count, per_ms, burst, credits, at_ms)
  local most = burst * per_ms
  credits = credits - units * per_ms
  if units > 0 then
    local full_ms = math.ceil((most - credits) / count) + at_ms - now_ms
    redis.call('SET', key, string.format('%d %d', credits, at_ms), 'PX',
      string.format('%d', full_ms + 1000))
  end
  if credits >= most then return 0, units end
  return at_ms - now_ms + math.ceil((per_ms - credits % per_ms) / count), units
end
