-- room/delete -- deletes an emptied queue.
--
-- KEYS   1 meta  hash  configuration and status of the queue
--        2 positions  zset  waiting positions
--        3 admitted   zset  admitted ids
--        4 active     set   ids of active sessions
--        5 ..others   any   everything else that belongs to the queue
-- REPLY  {'deleted'} | {'busy'}
--
-- Keeps: no position disappears without having been ended first.
local waiting = redis.call('ZCARD', positions) + redis.call('ZCARD', admitted)
if waiting + redis.call('SCARD', active) > 0 then
  return { 'busy' }
end
for _, key in ipairs(KEYS) do
  redis.call('UNLINK', key)
end
return { 'deleted' }
