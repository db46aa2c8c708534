-- store/webhook_settle -- writes what an attempt to deliver came to.
--
-- KEYS   1 due         zset  lanes that hold deliveries; score = time of the next attempt, ms
--        2 lane        list  ids of deliveries of one target and one subject, in order
--        3 deliveries  hash  id -> delivery as JSON
--        4 pending     hash  target -> number of deliveries in its lanes
--        5 dead        zset  ids of deliveries that were given up; score = time, ms
--        6 log         list  attempts as JSON, newest first
-- ARGV   1 now_ms  2 member  3 target  4 id  5 until_ms  6 outcome  7 next_ms  8 delivery  9 entry
--        10 log_max  11 dead_max
-- REPLY  {'settled'} | {'lost'}
--
-- outcome is 'delivered', 'retry' or 'dead'. Keeps: only the lease that holds a lane settles its first
-- delivery; a delivery leaves its lane before the next one is due.
local score = redis.call('ZSCORE', due, member)
if not score or tonumber(score) ~= tonumber(until_ms) or redis.call('LINDEX', lane, '0') ~= id then
  return { 'lost' }
end

redis.call('LPUSH', log, entry)
redis.call('LTRIM', log, '0', tonumber(log_max) - 1)
if outcome == 'retry' then
  redis.call('HSET', deliveries, id, delivery)
  redis.call('ZADD', due, next_ms, member)
  return { 'settled' }
end
redis.call('LPOP', lane)
if redis.call('HINCRBY', pending, target, '-1') <= 0 then
  redis.call('HDEL', pending, target)
end
if outcome == 'dead' then
  redis.call('HSET', deliveries, id, delivery)
  redis.call('ZADD', dead, now_ms, id)
  local beyond = redis.call('ZRANGE', dead, '0', -tonumber(dead_max) - 1)
  for _, old in ipairs(beyond) do
    redis.call('ZREM', dead, old)
    redis.call('HDEL', deliveries, old)
  end
else
  redis.call('HDEL', deliveries, id)
end
if redis.call('LLEN', lane) == 0 then
  redis.call('ZREM', due, member)
else
  redis.call('ZADD', due, next_ms, member)
end
return { 'settled' }
