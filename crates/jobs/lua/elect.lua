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
local leader = redis.call('GET', lock)
if leader and leader ~= scheduler then return { 'following', leader } end
if ttl_s == '0' then
  redis.call('DEL', lock)
  return { 'resigned' }
end
redis.call('SET', lock, scheduler, 'EX', ttl_s)
return { 'leading' }
