-- jobs/start -- notes until when attempts must have ended.
--
-- KEYS   1 claims     hash  id -> 'token worker type' of who runs it
--        2 deadlines  zset  ids that run and have a timeout; score = until when
--        3 timed      hash  ids that wait and have a timeout, or that a v1 worker runs
-- ARGV   1 ..rest
--        of each job: id, claim, deadline_ms
-- REPLY  {'started', how many}
--
-- Keeps: only the claim that holds a job sets its deadline; whatever ends the attempt takes it away.
local started = 0
for j = 1, #ARGV / 3 do
  local id = ARGV[3 * j - 2]
  if redis.call('HGET', KEYS[1], id) == ARGV[3 * j - 1] then
    redis.call('ZADD', KEYS[2], ARGV[3 * j], id)
    redis.call('HDEL', KEYS[3], id)
    started = started + 1
  end
end
return { 'started', started }
