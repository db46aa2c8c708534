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
local id = ARGV[5]
if redis.call('SISMEMBER', KEYS[4], id) == 0 or redis.call('HEXISTS', KEYS[5], id) == 1
  or redis.call('EXISTS', KEYS[10]) == 1 then
  return { 'alive' }
end
local status = redis.call('GET', KEYS[11])
local queue_state = queue_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), {})
redis.call('SREM', KEYS[4], id)
release_slots(KEYS[9], 1, KEYS[7], ARGV[6], ARGV[2])
-- v1 puts a job that failed in line again before it lets go of it.
local over = status == 'completed' or status == 'dead' or status == 'failed' or status == 'delayed'
  or status == 'waiting' and redis.call('LPOS', KEYS[1], id)
if over then
  queue_close(queue_state)
  return { 'over' }
end
local why = redis.call('HGET', KEYS[14], id)
if why then
  redis.call('HDEL', KEYS[14], id)
  redis.call('SET', KEYS[11], 'failed')
  redis.call('SET', KEYS[13], cancelled_result(why, ARGV[1]), 'EX', ARGV[4])
  redis.call('LPUSH', KEYS[15], ARGV[1] .. ' ' .. id)
elseif ARGV[7] == 'now' then
  redis.call('SET', KEYS[12], ARGV[8])
  redis.call('SET', KEYS[11], 'waiting')
  queue_push(queue_state, read_lanes(1, 15, 9), { id, 1, 'back' }, ARGV[2])
else
  redis.call('LPUSH', KEYS[6], id)
  redis.call('SET', KEYS[11], 'dead')
  redis.call('SET', KEYS[13], ARGV[9], 'EX', ARGV[4])
end
emit(KEYS[8], ARGV[3], 'recovered', ARGV[1], { id })
queue_close(queue_state)
return { 'recovered' }
