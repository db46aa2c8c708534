-- jobs/adopt -- finishes what a v1 producer left half done, or what a slow one wrote too late.
--
-- KEYS   1 waiting   list    ids in line
--        2 index     hash    marks of the line, masks of the routes
--        3 strays    list    ids in line that have no lane yet
--        4 delayed   zset    ids for later
--        5 cron      zset    ids of schedules
--        6 active    set     ids that run
--        7 finished  list    'ms id' of ended jobs, newest first
--        8 events    stream  what happened
--        9 registry  hash    route name -> route
--        10 lane     list    number and id of the jobs in line of this route and priority
--        11 data     string  the job
--        12 status   string  its state
--        13 lock     string  the worker that runs the job
--        14 result   string  what it came to
-- ARGV   1 now_ms  2 wake  3 events_max  4 id  5 kind  6 rid  7 priority  8 spec  9 server
--        10 place  11 body
-- REPLY  {'adopted'} | {'completed'} | {'forgotten'} | {'fine'}
--
-- Kinds: 'lost' has data and no status: it goes in line. 'late' says waiting but has succeeded: it
-- is completed. 'old' has ended, and its result is gone: it is forgotten.
--
-- Keeps: a job that is anywhere else, or has changed since it was looked at, is left alone.
local id, kind = ARGV[4], ARGV[5]
local status = redis.call('GET', KEYS[12])
if redis.call('GET', KEYS[11]) ~= ARGV[11] or redis.call('EXISTS', KEYS[13]) == 1
  or redis.call('SISMEMBER', KEYS[6], id) == 1 or redis.call('ZSCORE', KEYS[4], id)
  or redis.call('ZSCORE', KEYS[5], id) or redis.call('LPOS', KEYS[1], id) then
  return { 'fine' }
end
if kind == 'lost' and not status and redis.call('EXISTS', KEYS[14]) == 0 then
  local s = line_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), { 'm:' .. ARGV[6] })
  redis.call('SET', KEYS[12], 'waiting')
  local lane = { registry = KEYS[9], key = KEYS[10], rid = ARGV[6], priority = tonumber(ARGV[7]),
    spec = ARGV[8], server = ARGV[9], mask = s.more[1] }
  line_push(s, { lane }, { id, 1, ARGV[10] }, ARGV[2])
  emit(KEYS[8], ARGV[3], 'adopted', ARGV[1], { id })
  line_close(s)
  return { 'adopted' }
elseif kind == 'late' and (status == 'waiting' or not status) and redis.call('EXISTS', KEYS[14]) == 1 then
  redis.call('SET', KEYS[12], 'completed')
  redis.call('LPUSH', KEYS[7], ARGV[1] .. ' ' .. id)
  return { 'completed' }
elseif kind == 'old' and status == 'completed' and redis.call('EXISTS', KEYS[14]) == 0 then
  redis.call('DEL', KEYS[11], KEYS[12])
  return { 'forgotten' }
end
return { 'fine' }
