-- store/limit_release -- give back what one request holds in a sorted set: a lease, or units of a window.
--
-- KEYS   1 limit  zset  a member per unit
-- ARGV   1 request_id  2 units
-- REPLY  {'released', how many units}
--
-- Keeps: only what this request was given comes back, and once.
local released = 0
for unit = 1, tonumber(units) do
  released = released + redis.call('ZREM', limit, request_id .. ':' .. string.format('%.0f', unit))
end
return {'released', released}
