-- room/check_address -- tells whether one more visitor may be admitted from an address.
-- uses: address_full, address_limit, int
--
-- KEYS   1 meta     hash  configuration and status of the queue
--        2 admitted zset  admitted ids; score = start_by_ms
--        3 active   set   ids of active sessions
--        4 address  zset  admitted positions and sessions of the address; score = time of the last check
-- ARGV   1 now_ms
-- REPLY  {'free'} | {'full', limit} | {'unknown_queue'}
--
-- Keeps: nothing changes but that positions and sessions which ended are dropped from the address.
local m = redis.call('HMGET', meta, 'status', 'max_active', 'max_active_per_address')
if not m[1] then
  return { 'unknown_queue' }
end
local limit = address_limit(m[2], m[3])
if address_full(address, admitted, active, limit, tonumber(now_ms)) then
  return { 'full', int(limit) }
end
return { 'free' }
