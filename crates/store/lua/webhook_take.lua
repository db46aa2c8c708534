-- store/webhook_take -- leases the first delivery of a lane that is due.
--
-- KEYS   1 due         zset  lanes that hold deliveries; score = time of the next attempt, ms
--        2 lane        list  ids of deliveries of one target and one subject, in order
--        3 deliveries  hash  id -> delivery as JSON
-- ARGV   1 now_ms  2 until_ms  3 member
-- REPLY  {'taken', id, delivery} | {'busy'} | {'empty'}
--
-- Keeps: as long as the lease runs, nobody else takes from this lane. A reply that got lost costs
-- the time of the lease.
local score = redis.call('ZSCORE', due, member)
if not score or tonumber(score) > tonumber(now_ms) then
  return { 'busy' }
end

for _ = 1, 100 do
  local id = redis.call('LINDEX', lane, '0')
  if not id then
    redis.call('ZREM', due, member)
    return { 'empty' }
  end
  local delivery = redis.call('HGET', deliveries, id)
  if delivery then
    redis.call('ZADD', due, until_ms, member)
    return { 'taken', id, delivery }
  end
  redis.call('LPOP', lane)
end
return { 'busy' }
