-- Ends the claim of a job, if this worker still has it.
--
-- KEYS   1 bridge:jobs:lock:<id>   2 bridge:jobs:active   3 bridge:ratelimit:concurrent:<type>
-- ARGV   1 id of the worker   2 id of the job
-- returns 1, or 0 if the lock is another's by now
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[2])
if tonumber(redis.call('GET', KEYS[3]) or '0') > 0 then redis.call('DECR', KEYS[3]) end
return 1
