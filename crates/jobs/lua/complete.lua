-- jobs/complete -- writes the results of jobs that succeeded, if they are still their worker's.
--
-- KEYS   1 active     set     ids that run
--        2 claims     hash    id -> 'token worker type' of who runs it
--        3 leases     zset    ids that run
--        4 finished   list    'ms id' of ended jobs, newest first
--        5 parents    set     ids that other jobs wait for
--        6 settled    list    ended ids that other jobs wait for
--        7 blocked    set     types that somebody wanted while they were at their limit
--        8 processed  string  how many jobs succeeded
--        9 spent      string  how many milliseconds they took
--        10 cancelled hash    ids that shall stop
--        11 events    stream  what happened
--        12 ..keys            running counter per type, then lock, status and result per job
-- ARGV   1 now_ms  2 result_ttl_s  3 events_max  4 done  5 wake  6 spent_ms  7 types
--        8 ..rest
--        the types, then of each job: id, claim, result, keep
-- REPLY  {'completed' or 'settled', outcome per job}: 'done' (also when repeated) or 'lost'
--
-- Keeps: only the claim that holds a job completes it, once: lock, active, claims, leases and the
-- type's counter change together with status and result.
local now, types_count = ARGV[1], tonumber(ARGV[7])
local types = {}
for n = 1, types_count do types[ARGV[7 + n]] = n end
local job_keys, job_args = 11 + types_count, 7 + types_count
local jobs = (#ARGV - job_args) / 4
local asked = {}
for j = 1, jobs do asked[j] = ARGV[job_args + 4 * j - 3] end
local claims = redis.call('HMGET', KEYS[2], spread(asked))

local reply, ids, locks, statuses, finished, counts = { 'completed' }, {}, {}, {}, {}, {}
for j = 1, jobs do
  local at, key = job_args + 4 * (j - 1), job_keys + 3 * (j - 1)
  local id, claim, result = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if claims[j] == claim then
    -- A job named twice in one call is done once.
    for other = j + 1, jobs do
      if asked[other] == id then claims[other] = false end
    end
    redis.call('SET', KEYS[key + 3], result, 'EX', ARGV[2])
    ids[#ids + 1] = id
    locks[#locks + 1] = KEYS[key + 1]
    statuses[#statuses + 1] = KEYS[key + 2]
    statuses[#statuses + 1] = 'completed'
    if ARGV[at + 4] ~= '1' then finished[#finished + 1] = now .. ' ' .. id end
    local kind = string.match(claim, '^%d+ %S+ (.*)$')
    counts[kind] = (counts[kind] or 0) + 1
    reply[#reply + 1] = 'done'
  elseif not claims[j] and redis.call('GET', KEYS[key + 3]) == result then
    reply[#reply + 1] = 'done'
  else
    reply[#reply + 1] = 'lost'
  end
end
if #ids > 0 then
  redis.call('MSET', spread(statuses))
  redis.call('DEL', spread(locks))
  redis.call('SREM', KEYS[1], spread(ids))
  redis.call('HDEL', KEYS[2], spread(ids))
  redis.call('ZREM', KEYS[3], spread(ids))
  if #finished > 0 then redis.call('LPUSH', KEYS[4], spread(finished)) end
  if redis.call('EXISTS', KEYS[10]) == 1 then redis.call('HDEL', KEYS[10], spread(ids)) end
  for kind, count in pairs(counts) do
    free(KEYS[11 + types[kind]], count, KEYS[7], kind, ARGV[5])
  end
  if redis.call('EXISTS', KEYS[5]) == 1 then
    if settle(KEYS[5], KEYS[6], ids) then reply[1] = 'settled' end
  end
  redis.call('INCRBY', KEYS[8], #ids)
  redis.call('INCRBY', KEYS[9], ARGV[6])
  redis.call('PUBLISH', ARGV[4], table.concat(ids, '\n'))
  emit(KEYS[11], ARGV[3], 'completed', now, ids)
end
return reply
