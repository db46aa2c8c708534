-- jobs/recover -- takes back a job whose v1 worker went away.
-- uses: cancelled_result, emit, queue_close, queue_open, queue_push, read_lanes, release_slots
--
-- KEYS   1 waiting     list    waiting ids
--        2 index       hash    state of the index
--        3 unindexed   list    waiting ids that have no lane yet
--        4 active      set     ids that run
--        5 claims      hash    id -> 'token worker type' of who runs it
--        6 deadletter  list    dead ids, newest first
--        7 parked      zset    types whose lanes are put aside; score = when to look again
--        8 events      stream  what happened
--        9 running     string  how many jobs of the type run
--        10 lock       string  the worker that runs the job
--        11 status     string  its state
--        12 data       string  the job
--        13 result     string  what it came to
--        14 cancelled  hash    id -> reason, of running jobs that shall stop
--        15 finished   list    'ms id' of ended jobs, newest first
--        16 ..keys             those of the lane
-- ARGV   1 now_ms  2 wake  3 events_max  4 result_ttl_s  5 id  6 job_type  7 mode  8 body  9 outcome
--        10 ..lane
--        as `read_lanes` reads it
-- REPLY  {'recovered'} | {'over'} (it had ended; only its entry was left) | {'alive'}
--
-- Modes: 'now' puts it in line with `body`; 'dead' puts it away with `outcome`.
--
-- Keeps: in v1, lock and membership in active change together, so a member without a lock is
-- nobody's. A job of our own is left to its lease. A job that was cancelled ends.
if redis.call('SISMEMBER', active, id) == 0 or redis.call('HEXISTS', claims, id) == 1
  or redis.call('EXISTS', lock) == 1 then
  return { 'alive' }
end
local state = redis.call('GET', status)
local queue_state = queue_open(waiting, index, unindexed, tonumber(now_ms), {})
redis.call('SREM', active, id)
release_slots(running, 1, parked, job_type, wake)
-- v1 puts a job that failed in line again before it lets go of it.
local over = state == 'completed' or state == 'dead' or state == 'failed' or state == 'delayed'
  or state == 'waiting' and redis.call('LPOS', waiting, id)
if over then
  queue_close(queue_state)
  return { 'over' }
end
local why = redis.call('HGET', cancelled, id)
if why then
  redis.call('HDEL', cancelled, id)
  redis.call('SET', status, 'failed')
  redis.call('SET', result, cancelled_result(why, now_ms), 'EX', result_ttl_s)
  redis.call('LPUSH', finished, now_ms .. ' ' .. id)
elseif mode == 'now' then
  redis.call('SET', data, body)
  redis.call('SET', status, 'waiting')
  queue_push(queue_state, read_lanes(1, keys, lane), { id, 1, 'back' }, wake)
else
  redis.call('LPUSH', deadletter, id)
  redis.call('SET', status, 'dead')
  redis.call('SET', result, outcome, 'EX', result_ttl_s)
end
emit(events, events_max, 'recovered', now_ms, { id })
queue_close(queue_state)
return { 'recovered' }
