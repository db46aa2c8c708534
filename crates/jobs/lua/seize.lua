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
local id = ARGV[2]
local lock, status = redis.call('GET', KEYS[7]), redis.call('GET', KEYS[8])
local runs = status == 'active' or status == 'waiting' and redis.call('SISMEMBER', KEYS[3], id) == 1
if not runs or lock and lock ~= ARGV[3] or redis.call('HEXISTS', KEYS[1], id) == 1
  or redis.call('GET', KEYS[9]) ~= ARGV[5] then
  return { 'changed' }
end
if redis.call('SADD', KEYS[3], id) == 1 then redis.call('INCR', KEYS[6]) end
redis.call('HSET', KEYS[1], id, ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[1], id)
redis.call('HDEL', KEYS[4], id)
redis.call('HSET', KEYS[5], id, ARGV[1])
return { 'seized' }
