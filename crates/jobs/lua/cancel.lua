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
local queue_state = queue_open(waiting, index, unindexed, tonumber(now_ms), {})
local reply, ended = { 'cancelled' }, {}
for n = 1, #ARGV - ids do
  local id, key = ARGV[ids + n], keys + 4 * (n - 1)
  local status, answer = redis.call('GET', KEYS[key + 2]), nil
  if not status and redis.call('EXISTS', KEYS[key + 1]) == 0 then
    answer = 'missing'
  elseif status == 'cron' then
    answer = 'schedule'
  elseif status == 'completed' or status == 'dead' or status == 'failed' then
    redis.call('ZREM', expiring, id)
    answer = redis.call('ZSCORE', cron, id) and 'schedule' or 'is ' .. status
  else
    local out = false
    if redis.call('HEXISTS', claims, id) == 0 then
      out = redis.call('ZREM', delayed, id) == 1
      if redis.call('DEL', KEYS[key + 4]) == 1 then out = true end
      if not out and status ~= 'active' then out = queue_remove(queue_state, id, nil, true) end
    end
    if out then
      redis.call('ZREM', expiring, id)
      redis.call('HDEL', cancelled, id)
      redis.call('SET', KEYS[key + 2], 'failed')
      redis.call('SET', KEYS[key + 3], outcome, 'EX', result_ttl_s)
      redis.call('LPUSH', finished, now_ms .. ' ' .. id)
      ended[#ended + 1] = id
      answer = 'ended'
    elseif running == '' then
      redis.call('ZREM', expiring, id)
      answer = 'held'
    else
      redis.call('HSET', cancelled, id, reason)
      redis.call('PUBLISH', signal, id)
      answer = 'asked'
    end
  end
  reply[#reply + 1] = answer
end
queue_close(queue_state)
if ended[1] then
  redis.call('PUBLISH', done, table.concat(ended, '\n'))
  emit(events, events_max, event, now_ms, ended, reason)
  if redis.call('EXISTS', parents) == 1 and mark_parents(parents, settled, ended) then
    reply[1] = 'settled'
  end
end
return reply
