-- jobs/unschedule -- stops a schedule for good. What it has in line or running goes on.
--
-- KEYS   1 cron      zset    ids of schedules; score = next occurrence in ms
--        2 paused    set     ids of paused schedules
--        3 delayed   zset    ids for later
--        4 claims    hash    id -> 'token worker type' of who runs it
--        5 finished  list    'ms id' of ended jobs, newest first
--        6 lock      string  the worker that runs the schedule's own job
--        7 ..keys            status, data, result, progress, log, history, orphans and attempt
-- ARGV   1 now_ms  2 id
-- REPLY  {'removed'} | {'running'} | {'missing'}
--
-- Keeps: what is left of a schedule is removed, at once or in its turn among the ended jobs.
if redis.call('ZREM', cron, id) == 0 then return { 'missing' } end
redis.call('SREM', paused, id)
local status = redis.call('GET', KEYS[keys + 1])
local busy = status == 'waiting'
  or status == 'active' and (redis.call('HEXISTS', claims, id) == 1
    or redis.call('EXISTS', lock) == 1)
  or status == 'delayed' and redis.call('ZSCORE', delayed, id)
if busy then
  -- A run of a schedule leaves no entry when it ends, so this one stands for it.
  redis.call('LPUSH', finished, now_ms .. ' ' .. id)
  return { 'running' }
end
for j = keys + 1, #KEYS do redis.call('DEL', KEYS[j]) end
return { 'removed' }
