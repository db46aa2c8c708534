-- room/check_address -- tells whether one more session may start from an address.
--
-- KEYS   1 meta     hash  configuration and status of the queue
--        2 active   set   ids of active sessions
--        3 address  zset  sessions started from the address; score = time of the last check
-- ARGV   1 now_ms
-- REPLY  {'free'} | {'full', limit} | {'unknown_queue'}
--
-- Keeps: nothing changes but that sessions which ended are dropped from the address.
local meta, active, address = KEYS[1], KEYS[2], KEYS[3]
local m = redis.call('HMGET', meta, 'status', 'max_active', 'max_active_per_address')
if not m[1] then
  return { 'unknown_queue' }
end
local limit = address_limit(m[2], m[3])
if address_full(address, active, limit, tonumber(ARGV[1])) then
  return { 'full', int(limit) }
end
return { 'free' }
