-- jobs/cancel -- ends jobs that have not started, and asks the workers of those that run to stop.
-- uses: emit, mark_parents, queue_close, queue_open, queue_remove
--
-- KEYS   1 waiting    list    waiting ids
--        2 index      hash    state of the index
--        3 unindexed  list    waiting ids that have no lane yet
--        4 delayed    zset    ids for later
--        5 expiring   zset    ids that must start by then
--        6 finished   list    'ms id' of ended jobs, newest first
--        7 parents    set     ids that other jobs wait for
--        8 settled    list    ended ids that other jobs wait for
--        9 claims     hash    id -> 'token worker type' of who runs it
--        10 cancelled hash    id -> reason, of running jobs that shall stop
--        11 events    stream  what happened
--        12 cron      zset    ids of schedules
--        13 ..keys            data, status, result and pending per job
-- ARGV   1 now_ms  2 done  3 signal  4 events_max  5 result_ttl_s  6 outcome  7 reason  8 event
--        9 running  10 ..ids
-- REPLY  {'cancelled' or 'settled' (others wait for one that ended), outcome per job}: 'ended',
--        'asked', 'held' (it runs, and running = ''), 'is STATUS' (it has ended), 'schedule' or
--        'missing'
--
-- Of a schedule only an occurrence that is in line or runs is cancelled; the schedule itself is not a
-- job that could end, and goes on.
--
-- Keeps: what has ended stays as it is; what runs is only asked, and not even that with running = ''.
-- A v1 worker cannot be asked; its job is marked, and ends when that worker gives it back.
local queue_state = queue_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), {})
local reply, ended = { 'cancelled' }, {}
for n = 1, #ARGV - 9 do
  local id, key = ARGV[9 + n], 12 + 4 * (n - 1)
  local status, outcome = redis.call('GET', KEYS[key + 2]), nil
  if not status and redis.call('EXISTS', KEYS[key + 1]) == 0 then
    outcome = 'missing'
  elseif status == 'cron' then
    outcome = 'schedule'
  elseif status == 'completed' or status == 'dead' or status == 'failed' then
    redis.call('ZREM', KEYS[5], id)
    outcome = redis.call('ZSCORE', KEYS[12], id) and 'schedule' or 'is ' .. status
  else
    local out = false
    if redis.call('HEXISTS', KEYS[9], id) == 0 then
      out = redis.call('ZREM', KEYS[4], id) == 1
      if redis.call('DEL', KEYS[key + 4]) == 1 then out = true end
      if not out and status ~= 'active' then out = queue_remove(queue_state, id, nil, true) end
    end
    if out then
      redis.call('ZREM', KEYS[5], id)
      redis.call('HDEL', KEYS[10], id)
      redis.call('SET', KEYS[key + 2], 'failed')
      redis.call('SET', KEYS[key + 3], ARGV[6], 'EX', ARGV[5])
      redis.call('LPUSH', KEYS[6], ARGV[1] .. ' ' .. id)
      ended[#ended + 1] = id
      outcome = 'ended'
    elseif ARGV[9] == '' then
      redis.call('ZREM', KEYS[5], id)
      outcome = 'held'
    else
      redis.call('HSET', KEYS[10], id, ARGV[7])
      redis.call('PUBLISH', ARGV[3], id)
      outcome = 'asked'
    end
  end
  reply[#reply + 1] = outcome
end
queue_close(queue_state)
if ended[1] then
  redis.call('PUBLISH', ARGV[2], table.concat(ended, '\n'))
  emit(KEYS[11], ARGV[4], ARGV[8], ARGV[1], ended, ARGV[7])
  if redis.call('EXISTS', KEYS[7]) == 1 and mark_parents(KEYS[7], KEYS[8], ended) then
    reply[1] = 'settled'
  end
end
return reply
