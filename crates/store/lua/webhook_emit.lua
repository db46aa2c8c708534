-- store/webhook_emit -- puts an event in line for its targets, once.
--
-- KEYS   1 due         zset  lanes that hold deliveries; score = time of the next attempt, ms
--        2 deliveries  hash  id -> delivery as JSON
--        3 pending     hash  target -> number of deliveries in its lanes
--        4 seen        zset  ids of the latest events; score = time, ms
--        5 alarms      hash  alarm -> time since which it is raised, ms
--        6 ..lanes     list  ids of deliveries of one target and one subject, in order
-- ARGV   1 now_ms  2 event_id  3 alarm_mode  4 alarm  5 pending_max  6 seen_max  7 ..targets
-- REPLY  {'emitted', target, …} with the targets that were full | {'seen'} | {'unchanged'}
--
-- Of each target: its id, id of the delivery, member of due, the delivery. alarm_mode is '', 'raise' or
-- 'clear': an alarm that is raised already, or was not raised, changes nothing.
--
-- Keeps: an event is in line for a target at most once, however often this is repeated.
if redis.call('ZSCORE', seen, event_id) then
  return { 'seen' }
end
local raised = alarm_mode ~= '' and redis.call('HEXISTS', alarms, alarm) == 1
if (alarm_mode == 'raise' and raised) or (alarm_mode == 'clear' and not raised) then
  return { 'unchanged' }
end

if alarm_mode == 'raise' then
  redis.call('HSET', alarms, alarm, now_ms)
elseif alarm_mode == 'clear' then
  redis.call('HDEL', alarms, alarm)
end
redis.call('ZADD', seen, now_ms, event_id)
redis.call('ZREMRANGEBYRANK', seen, '0', -tonumber(seen_max) - 1)
local reply, at = { 'emitted' }, lanes
for i = targets + 1, #ARGV, 4 do
  at = at + 1
  local target, id, member, delivery = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if tonumber(redis.call('HGET', pending, target) or '0') >= tonumber(pending_max) then
    reply[#reply + 1] = target
  else
    redis.call('HSET', deliveries, id, delivery)
    redis.call('RPUSH', KEYS[at], id)
    redis.call('HINCRBY', pending, target, '1')
    redis.call('ZADD', due, 'NX', now_ms, member)
  end
end
return reply
