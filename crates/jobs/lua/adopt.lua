-- jobs/adopt -- finishes what a v1 producer left half done, or what a slow one wrote too late.
-- uses: emit, queue_close, queue_open, queue_push, read_lanes
--
-- KEYS   1 waiting   list    waiting ids
--        2 index     hash    state of the index
--        3 unindexed list    waiting ids that have no lane yet
--        4 delayed   zset    ids for later
--        5 cron      zset    ids of schedules
--        6 active    set     ids that run
--        7 finished  list    'ms id' of ended jobs, newest first
--        8 events    stream  what happened
--        9 data      string  the job
--        10 status   string  its state
--        11 lock     string  the worker that runs the job
--        12 result   string  what it came to
--        13 ..keys           those of the lane
-- ARGV   1 now_ms  2 wake  3 events_max  4 id  5 case  6 place  7 body  8 ..lane
--        as `read_lanes` reads it
-- REPLY  {'adopted'} | {'completed'} | {'forgotten'} | {'fine'}
--
-- Cases: 'lost' has data and no status: it goes in line. 'late' says waiting but has succeeded: it
-- is completed. 'old' has ended, and its result is gone: it is forgotten.
--
-- Keeps: a job that is anywhere else, or has changed since it was looked at, is left alone.
local state = redis.call('GET', status)
if redis.call('GET', data) ~= body or redis.call('EXISTS', lock) == 1
  or redis.call('SISMEMBER', active, id) == 1 or redis.call('ZSCORE', delayed, id)
  or redis.call('ZSCORE', cron, id) or redis.call('LPOS', waiting, id) then
  return { 'fine' }
end
if case == 'lost' and not state and redis.call('EXISTS', result) == 0 then
  local queue_state = queue_open(waiting, index, unindexed, tonumber(now_ms), {})
  redis.call('SET', status, 'waiting')
  queue_push(queue_state, read_lanes(1, keys, lane), { id, 1, place }, wake)
  emit(events, events_max, 'adopted', now_ms, { id })
  queue_close(queue_state)
  return { 'adopted' }
elseif case == 'late' and (state == 'waiting' or not state) and redis.call('EXISTS', result) == 1 then
  redis.call('SET', status, 'completed')
  redis.call('LPUSH', finished, now_ms .. ' ' .. id)
  return { 'completed' }
elseif case == 'old' and state == 'completed' and redis.call('EXISTS', result) == 0 then
  redis.call('DEL', data, status)
  return { 'forgotten' }
end
return { 'fine' }
