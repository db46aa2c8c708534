-- jobs/elect -- makes a scheduler the leader, keeps it, or lets go.
--
-- KEYS   1 lock  string  the scheduler that leads
-- ARGV   1 scheduler  2 ttl_s
-- REPLY  {'leading'} | {'following', who leads} | {'resigned'}
--
-- A ttl_s of 0 resigns.
--
-- Keeps: there is at most one leader at a time; one that says nothing is replaced when the lock
-- expires. Leading only saves work: everything a leader does is safe to do twice.
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return { 'following', leader } end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  return { 'resigned' }
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return { 'leading' }
