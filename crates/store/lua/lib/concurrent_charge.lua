-- concurrent_charge(key, now_ms, request_id, units, limit, lease_ms, _, used, first) -- leases units.
-- uses: add_units
-- Returns when the first lease expires (0: there is none), and how many units were new.
local function concurrent_charge(key, now_ms, request_id, units, limit, lease_ms, _, used, first)
  local added = 0
  if units > 0 then
    added = add_units(key, now_ms + lease_ms, request_id, units)
    -- Leases may have different lengths; the key outlives the longest.
    local last = tonumber(redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2])
    redis.call('PEXPIRE', key, string.format('%d', last - now_ms + 1000))
    if used == 0 then first = now_ms + lease_ms end
    first = math.min(first, now_ms + lease_ms)
  end
  if used + added == 0 then return 0, added end
  return math.max(1, first - now_ms), added
end
