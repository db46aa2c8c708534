-- store/limit_release -- give back what one request holds in a sorted set: a lease, or units of a window.
--
-- KEYS   1 limit  zset  a member per unit
-- ARGV   1 request_id  2 units  3 keep_ms
-- REPLY  {'released', how many units}
--
-- Keeps: only what this request was given comes back, and once. A fixed window whose first unit goes
-- opens later, so it must live longer: keep_ms, if given.
local released = 0
for unit = 1, tonumber(units) do
  released = released + redis.call('ZREM', limit, request_id .. ':' .. string.format('%.0f', unit))
end
if released > 0 and keep_ms ~= '' then redis.call('PEXPIRE', limit, keep_ms) end
return {'released', released}
