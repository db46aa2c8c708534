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
--        12 ..keys            running counter per claim, then lock, status and result per job
-- ARGV   1 now_ms  2 result_ttl_s  3 events_max  4 done  5 wake  6 spent_ms  7 claims
--        8 ..rest
--        of each claim: its text, type, keep; of each job: id, number of its claim, result
-- REPLY  {'completed' or 'settled', numbers of the jobs that were not done}: those are another's by
--        now; a repeated call counts as done
--
-- Keeps: only the claim that holds a job completes it, once: lock, active, claims, leases and the
-- type's counter change together with status and result.
local call = redis.call
local now, ttl, claims_count = ARGV[1], ARGV[2], tonumber(ARGV[7])
local texts, kinds, keeps, counters, counts = {}, {}, {}, {}, {}
for n = 1, claims_count do
  local at, name = 7 + 3 * (n - 1), tostring(n)
  texts[name], kinds[name], keeps[name] = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1'
  counters[ARGV[at + 2]] = KEYS[11 + n]
end
local at, key = 7 + 3 * claims_count, 11 + claims_count
local jobs = (#ARGV - at) / 3
local asked = {}
for j = 1, jobs do asked[j] = ARGV[at + 3 * j - 2] end
local held = call('HMGET', KEYS[2], spread(asked))

local reply, seen = { 'completed' }, {}
local ids, locks, statuses, finished, count, ended = {}, {}, {}, {}, 0, 0
for j = 1, jobs do
  local id, n, result = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if held[j] == texts[n] and not seen[id] then
    -- A job named twice in one call is done once.
    seen[id] = true
    call('SETEX', KEYS[key + 3], ttl, result)
    count = count + 1
    ids[count] = id
    locks[count] = KEYS[key + 1]
    statuses[2 * count - 1] = KEYS[key + 2]
    statuses[2 * count] = 'completed'
    if not keeps[n] then
      ended = ended + 1
      finished[ended] = now .. ' ' .. id
    end
    counts[kinds[n]] = (counts[kinds[n]] or 0) + 1
  elseif (held[j] and not seen[id]) or call('GET', KEYS[key + 3]) ~= result then
    reply[#reply + 1] = j
  end
  at, key = at + 3, key + 3
end
if count > 0 then
  call('MSET', spread(statuses))
  call('DEL', spread(locks))
  call('SREM', KEYS[1], spread(ids))
  call('HDEL', KEYS[2], spread(ids))
  call('ZREM', KEYS[3], spread(ids))
  if ended > 0 then call('LPUSH', KEYS[4], spread(finished)) end
  if call('EXISTS', KEYS[10]) == 1 then call('HDEL', KEYS[10], spread(ids)) end
  for kind, places in pairs(counts) do free(counters[kind], places, KEYS[7], kind, ARGV[5]) end
  if call('EXISTS', KEYS[5]) == 1 and settle(KEYS[5], KEYS[6], ids) then reply[1] = 'settled' end
  call('INCRBY', KEYS[8], count)
  call('INCRBY', KEYS[9], ARGV[6])
  call('PUBLISH', ARGV[4], table.concat(ids, '\n'))
  emit(KEYS[11], ARGV[3], 'completed', now, ids)
end
return reply
