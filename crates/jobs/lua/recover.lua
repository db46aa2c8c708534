-- jobs/recover -- takes back a job whose v1 worker went away.
--
-- KEYS   1 waiting     list    ids in line
--        2 index       hash    marks of the line, masks of the routes
--        3 strays      list    ids in line that have no lane yet
--        4 active      set     ids that run
--        5 claims      hash    id -> 'token worker type' of who runs it
--        6 deadletter  list    dead ids, newest first
--        7 blocked     set     types that somebody wanted while they were at their limit
--        8 events      stream  what happened
--        9 running     string  how many jobs of the type run
--        10 registry   hash    route name -> route
--        11 lane       list    number and id of the jobs in line of this route and priority
--        12 lock       string  the worker that runs the job
--        13 status     string  its state
--        14 data       string  the job
--        15 result     string  what it came to
--        16 cancelled  hash    id -> reason, of running jobs that shall stop
--        17 finished   list    'ms id' of ended jobs, newest first
-- ARGV   1 now_ms  2 wake  3 events_max  4 result_ttl_s  5 id  6 kind  7 mode  8 rid  9 priority
--        10 spec  11 server  12 body  13 outcome
-- REPLY  {'recovered'} | {'over'} (it had ended; only its entry was left) | {'alive'}
--
-- Modes: 'now' puts it in line with `body`; 'dead' puts it away with `outcome`.
--
-- Keeps: in v1, lock and membership in active change together, so a member without a lock is
-- nobody's. A job of our own is left to its lease. A job that was cancelled ends.
local id = ARGV[5]
if redis.call('SISMEMBER', KEYS[4], id) == 0 or redis.call('HEXISTS', KEYS[5], id) == 1
  or redis.call('EXISTS', KEYS[12]) == 1 then
  return { 'alive' }
end
local status = redis.call('GET', KEYS[13])
local s = line_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), { 'm:' .. ARGV[8] })
redis.call('SREM', KEYS[4], id)
free(KEYS[9], 1, KEYS[7], ARGV[6], ARGV[2])
-- v1 puts a job that failed in line again before it lets go of it.
local over = status == 'completed' or status == 'dead' or status == 'failed' or status == 'delayed'
  or status == 'waiting' and redis.call('LPOS', KEYS[1], id)
if over then
  line_close(s)
  return { 'over' }
end
local why = redis.call('HGET', KEYS[16], id)
if why then
  redis.call('HDEL', KEYS[16], id)
  redis.call('SET', KEYS[13], 'failed')
  redis.call('SET', KEYS[15], cancelled_result(why, ARGV[1]), 'EX', ARGV[4])
  redis.call('LPUSH', KEYS[17], ARGV[1] .. ' ' .. id)
elseif ARGV[7] == 'now' then
  redis.call('SET', KEYS[14], ARGV[12])
  redis.call('SET', KEYS[13], 'waiting')
  local lane = { registry = KEYS[10], key = KEYS[11], rid = ARGV[8], priority = tonumber(ARGV[9]),
    spec = ARGV[10], server = ARGV[11], mask = s.more[1] }
  line_push(s, { lane }, { id, 1, 'back' }, ARGV[2])
else
  redis.call('LPUSH', KEYS[6], id)
  redis.call('SET', KEYS[13], 'dead')
  redis.call('SET', KEYS[15], ARGV[13], 'EX', ARGV[4])
end
emit(KEYS[8], ARGV[3], 'recovered', ARGV[1], { id })
line_close(s)
return { 'recovered' }
