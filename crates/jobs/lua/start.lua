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
for j = 1, (#ARGV - rest) / 3 do
  local at = rest + 3 * (j - 1)
  local id = ARGV[at + 1]
  if redis.call('HGET', claims, id) == ARGV[at + 2] then
    redis.call('ZADD', deadlines, ARGV[at + 3], id)
    redis.call('HDEL', timed, id)
    started = started + 1
  end
end
return { 'started', started }
