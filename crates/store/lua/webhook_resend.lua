-- store/webhook_resend -- puts a dead letter back in line.
--
-- KEYS   1 due         zset  lanes that hold deliveries; score = time of the next attempt, ms
--        2 lane        list  ids of deliveries of one target and one subject, in order
--        3 deliveries  hash  id -> delivery as JSON
--        4 pending     hash  target -> number of deliveries in its lanes
--        5 dead        zset  ids of deliveries that were given up; score = time, ms
-- ARGV   1 now_ms  2 member  3 target  4 id  5 delivery
-- REPLY  {'queued'} | {'gone'}
--
-- Keeps: a dead letter is in line or among the dead, never both. A repeated call finds it gone.
if not redis.call('ZSCORE', dead, id) then
  return { 'gone' }
end
redis.call('ZREM', dead, id)
redis.call('HSET', deliveries, id, delivery)
redis.call('RPUSH', lane, id)
redis.call('HINCRBY', pending, target, '1')
redis.call('ZADD', due, 'NX', now_ms, member)
return { 'queued' }
