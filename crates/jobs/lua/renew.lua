-- jobs/renew -- extends the leases of jobs that their worker still runs.
-- uses: release_term
--
-- KEYS   1 claims     hash  id -> 'token worker type' of who runs it
--        2 leases     zset  ids that run under a lease of their own; score = lease_until_ms
--        3 cancelled  hash  id -> reason, of jobs that shall stop
--        4 claim_leases zset  tokens of claims; score = until when their jobs are held
--        5 claim_counts hash  token -> how many jobs run under that term
--        6 deadlines  zset  ids that run and have a timeout; score = until when
--        7 ..locks          the lock per job
-- ARGV   1 lock_ttl_s  2 lease_until_ms  3 worker_id  4 now_ms  5 ..rest
--        of each job: id, claim
-- REPLY  {'renewed', outcome per job}: 'held', 'cancelled' (held, but shall stop), 'late' (it
--        has run longer than it may) or 'lost'
--
-- Keeps: lock and lease of a held job run at least until lease_until_ms. A job that is renewed for
-- the first time leaves the term of its claim for a lease of its own. Repeating does no harm.
local reply = { 'renewed' }
local any, now = redis.call('EXISTS', cancelled) == 1, tonumber(now_ms)
for j = 1, (#ARGV - rest) / 2 do
  local id, claim = ARGV[rest + 2 * j - 1], ARGV[rest + 2 * j]
  local held = redis.call('HGET', claims, id) == claim
  local deadline = held and redis.call('ZSCORE', deadlines, id)
  if deadline and tonumber(deadline) <= now then
    reply[#reply + 1] = 'late'
  elseif held then
    if redis.call('ZADD', leases, lease_until_ms, id) == 1 then release_term(claim_leases, claim_counts, claim, 1) end
    redis.call('SET', KEYS[locks + j], worker_id, 'EX', lock_ttl_s)
    local stop = any and redis.call('HEXISTS', cancelled, id) == 1
    reply[#reply + 1] = stop and 'cancelled' or 'held'
  else
    reply[#reply + 1] = 'lost'
  end
end
return reply
