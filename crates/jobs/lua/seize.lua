-- jobs/seize -- makes an attempt of a v1 worker that has run for too long one of ours, which is
-- then ended as any other that is past its deadline.
--
-- KEYS   1 claims     hash    id -> 'token worker type' of who runs it
--        2 deadlines  zset    ids that run and have a timeout; score = until when
--        3 active     set     ids that run
--        4 timed      hash    ids that wait and have a timeout, or that a v1 worker runs
--        5 overruns   hash    id -> when its v1 worker was overruled
--        6 running    string  how many jobs of the type run
--        7 lock       string  the worker that runs the job
--        8 status     string  its state
--        9 data       string  the job
-- ARGV   1 now_ms  2 id  3 worker  4 claim  5 body
-- REPLY  {'seized'} | {'changed'} (it is not the attempt that was looked at any more)
--
-- Keeps: only an attempt that no worker of ours holds is taken over. v1's class worker is in no set
-- and takes no slot, so it gets both here: whatever ends the attempt gives them back.
local holder, state = redis.call('GET', lock), redis.call('GET', status)
local runs = state == 'active' or state == 'waiting' and redis.call('SISMEMBER', active, id) == 1
if not runs or holder and holder ~= worker or redis.call('HEXISTS', claims, id) == 1
  or redis.call('GET', data) ~= body then
  return { 'changed' }
end
if redis.call('SADD', active, id) == 1 then redis.call('INCR', running) end
redis.call('HSET', claims, id, claim)
redis.call('ZADD', deadlines, now_ms, id)
redis.call('HDEL', timed, id)
redis.call('HSET', overruns, id, now_ms)
return { 'seized' }
