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
local id, case = ARGV[4], ARGV[5]
local status = redis.call('GET', KEYS[10])
if redis.call('GET', KEYS[9]) ~= ARGV[7] or redis.call('EXISTS', KEYS[11]) == 1
  or redis.call('SISMEMBER', KEYS[6], id) == 1 or redis.call('ZSCORE', KEYS[4], id)
  or redis.call('ZSCORE', KEYS[5], id) or redis.call('LPOS', KEYS[1], id) then
  return { 'fine' }
end
if case == 'lost' and not status and redis.call('EXISTS', KEYS[12]) == 0 then
  local queue_state = queue_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), {})
  redis.call('SET', KEYS[10], 'waiting')
  queue_push(queue_state, read_lanes(1, 12, 7), { id, 1, ARGV[6] }, ARGV[2])
  emit(KEYS[8], ARGV[3], 'adopted', ARGV[1], { id })
  queue_close(queue_state)
  return { 'adopted' }
elseif case == 'late' and (status == 'waiting' or not status) and redis.call('EXISTS', KEYS[12]) == 1 then
  redis.call('SET', KEYS[10], 'completed')
  redis.call('LPUSH', KEYS[7], ARGV[1] .. ' ' .. id)
  return { 'completed' }
elseif case == 'old' and status == 'completed' and redis.call('EXISTS', KEYS[12]) == 0 then
  redis.call('DEL', KEYS[9], KEYS[10])
  return { 'forgotten' }
end
return { 'fine' }
