-- jobs/cancel -- ends a job that has not started, or asks the worker that runs it to stop.
--
-- KEYS   1 waiting    list    ids in line
--        2 index      hash    marks of the line
--        3 strays     list    ids in line that have no lane yet
--        4 delayed    zset    ids for later
--        5 expiring   zset    ids that must start by then
--        6 finished   list    'ms id' of ended jobs, newest first
--        7 parents    set     ids that other jobs wait for
--        8 settled    list    ended ids that other jobs wait for
--        9 claims     hash    id -> 'token worker type' of who runs it
--        10 cancelled hash    id -> reason, of running jobs that shall stop
--        11 events    stream  what happened
--        12 data      string  the job
--        13 status    string  its state
--        14 result    string  what it came to
--        15 pending   set     ids it waits for
--        16 cron      zset    ids of schedules
-- ARGV   1 now_ms  2 done  3 signal  4 events_max  5 result_ttl_s  6 id  7 outcome  8 reason
--        9 event  10 running
-- REPLY  {'ended'} | {'asked'} | {'settled'} (ended, and others wait for it) | {'held'} (a worker
--        has it that cannot be asked) | {'final', status} | {'schedule'} | {'missing'}
--
-- Of a schedule only an occurrence that is in line or runs is cancelled; the schedule itself is not a
-- job that could end, and goes on.
--
-- Keeps: what has ended stays as it is; what runs is only asked, and not even that with running = ''.
local id, status = ARGV[6], redis.call('GET', KEYS[13])
if not status and redis.call('EXISTS', KEYS[12]) == 0 then return { 'missing' } end
if status == 'cron' then return { 'schedule' } end
if status == 'completed' or status == 'dead' or status == 'failed' then
  redis.call('ZREM', KEYS[5], id)
  if redis.call('ZSCORE', KEYS[16], id) then return { 'schedule' } end
  return { 'final', status }
end
if redis.call('HEXISTS', KEYS[9], id) == 1 then
  if ARGV[10] == '' then
    redis.call('ZREM', KEYS[5], id)
    return { 'held' }
  end
  redis.call('HSET', KEYS[10], id, ARGV[8])
  redis.call('PUBLISH', ARGV[3], id)
  return { 'asked' }
end
local s = line_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), {})
local out = redis.call('ZREM', KEYS[4], id) == 1
if redis.call('DEL', KEYS[15]) == 1 then out = true end
if not out and status ~= 'active' then out = line_take(s, id, nil, true) end
line_close(s)
-- Somebody else popped it from the line this moment, or runs it under v1's rules.
if not out then return { 'held' } end
redis.call('ZREM', KEYS[5], id)
redis.call('SET', KEYS[13], 'failed')
redis.call('SET', KEYS[14], ARGV[7], 'EX', ARGV[5])
redis.call('LPUSH', KEYS[6], ARGV[1] .. ' ' .. id)
redis.call('PUBLISH', ARGV[2], id)
emit(KEYS[11], ARGV[4], ARGV[9], ARGV[1], { id }, ARGV[8])
if redis.call('EXISTS', KEYS[7]) == 1 and settle(KEYS[7], KEYS[8], { id }) then
  return { 'settled' }
end
return { 'ended' }
