-- jobs/fail -- ends attempts that did not succeed: try again later, now or elsewhere, or not at all.
-- uses: cancelled_result, emit, mark_parents, open_lanes, queue_close, queue_push, release_slots,
--       release_term
--
-- KEYS   1 waiting     list    waiting ids
--        2 index       hash    state of the index
--        3 unindexed   list    waiting ids that have no lane yet
--        4 delayed     zset    ids for later; score = due_ms
--        5 deadletter  list    dead ids, newest first
--        6 active      set     ids that run
--        7 claims      hash    id -> 'token worker type' of who runs it
--        8 leases      zset    ids that run under a lease of their own; score = lease_until_ms
--        9 finished    list    'ms id' of ended jobs, newest first
--        10 parents    set     ids that other jobs wait for
--        11 settled    list    ended ids that other jobs wait for
--        12 parked     zset    types whose lanes are put aside; score = when to look again
--        13 failed     string  how many attempts failed
--        14 cancelled  hash    id -> reason, of running jobs that shall stop
--        15 events     stream  what happened
--        16 claim_leases zset    tokens of claims; score = until when their jobs are held
--        17 claim_counts hash    token -> how many jobs run under that term
--        18 deadlines  zset    ids that run and have a timeout; score = until when
--        19 ..keys             those of the lanes, running counter per type, then lock,
--                              status, result, data and history per job
-- ARGV   1 now_ms  2 wake  3 done  4 events_max  5 result_ttl_s  6 history_max  7 only_expired
--        8 lanes  9 types  10 ..rest
--        the lanes, as `read_lanes` reads them; the types; of each job: id, claim, mode, lane, due_ms, event, result or '', data or '', entry or ''
-- REPLY  {'failed' or 'settled', outcome per job}: 'done' (also when repeated), 'cancelled' (the
--        job was to stop: it has ended for good, whatever the mode), 'late' (it has run longer than
--        it may, and is not given back as if it had not) or 'lost'
--
-- Modes: 'later' waits until due_ms; 'now' goes to the end of the line, 'head' before all others;
-- 'dead' goes to the dead letters; 'failed' ends the job without; 'kept' is 'dead' for a schedule,
-- which goes on and is in the dead letters once.
--
-- Keeps: only the claim that holds a job ends its attempt, once; afterwards the job is in exactly
-- one of waiting, delayed, deadletter and finished. With only_expired = 1 the lease must have run
-- out as well. A job that was cancelled never runs again: its attempt ends it, with the reason that
-- was given for the cancellation.
local now = tonumber(now_ms)
local queue_state, lane_list, type_keys, type_args = open_lanes()
local types_count, type_numbers = tonumber(types), {}
for n = 1, types_count do type_numbers[ARGV[type_args + n]] = n end
local job_keys, job_args = type_keys + types_count, type_args + types_count

local reply, entries, ended, ids, counts, failures = { 'failed' }, {}, {}, {}, {}, 0
local ids_of = {}
local stops, timed = redis.call('EXISTS', cancelled) == 1, redis.call('EXISTS', deadlines) == 1
for j = 1, (#ARGV - job_args) / 9 do
  local at, key = job_args + 9 * (j - 1), job_keys + 5 * (j - 1)
  local id, claim, mode = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local result, data, entry = ARGV[at + 7], ARGV[at + 8], ARGV[at + 9]
  local held = redis.call('HGET', claims, id)
  local due = true
  if held == claim and only_expired == '1' then
    local lease = redis.call('ZSCORE', leases, id)
      or redis.call('ZSCORE', claim_leases, string.match(claim, '^%d+')) or 0
    due = tonumber(lease) <= now
  end
  local deadline = timed and held == claim and redis.call('ZSCORE', deadlines, id)
  if deadline and due and entry == '' and result == '' and tonumber(deadline) <= now
    and not (stops and redis.call('HEXISTS', cancelled, id) == 1) then
    reply[#reply + 1] = 'late'
  elseif held == claim and due then
    redis.call('HDEL', claims, id)
    if deadline then redis.call('ZREM', deadlines, id) end
    if redis.call('ZREM', leases, id) == 0 then release_term(claim_leases, claim_counts, claim, 1) end
    redis.call('SREM', active, id)
    redis.call('DEL', KEYS[key + 1])
    local event, outcome = ARGV[at + 6], 'done'
    local why = stops and redis.call('HGET', cancelled, id)
    if why then
      redis.call('HDEL', cancelled, id)
      mode, event, outcome, data = 'failed', 'cancelled', 'cancelled', ''
      result = cancelled_result(why, now_ms)
    end
    if result ~= '' then
      redis.call('SET', KEYS[key + 3], result, 'EX', result_ttl_s)
      failures = failures + 1
    end
    if data ~= '' then redis.call('SET', KEYS[key + 4], data) end
    if entry ~= '' then
      redis.call('RPUSH', KEYS[key + 5], entry)
      redis.call('LTRIM', KEYS[key + 5], -tonumber(history_max), -1)
    end
    local status = KEYS[key + 2]
    if mode == 'later' then
      redis.call('ZADD', delayed, ARGV[at + 5], id)
      redis.call('SET', status, 'delayed')
      redis.call('PUBLISH', wake, 'later')
    elseif mode == 'now' or mode == 'head' then
      redis.call('SET', status, 'waiting')
      local n = #entries
      entries[n + 1], entries[n + 2] = id, tonumber(ARGV[at + 4])
      entries[n + 3] = mode == 'now' and 'back' or mode
    elseif mode == 'dead' then
      redis.call('LPUSH', deadletter, id)
      redis.call('SET', status, 'dead')
      ended[#ended + 1] = id
    elseif mode == 'kept' then
      redis.call('LREM', deadletter, 1, id)
      redis.call('LPUSH', deadletter, id)
      redis.call('SET', status, 'dead')
      ended[#ended + 1] = id
    else
      redis.call('LPUSH', finished, now_ms .. ' ' .. id)
      redis.call('SET', status, 'failed')
      ended[#ended + 1] = id
    end
    local job_type = string.match(claim, '^%d+ %S+ (.*)$')
    counts[job_type] = (counts[job_type] or 0) + 1
    ids[#ids + 1] = id
    if not ids_of[event] then ids_of[event] = {} end
    table.insert(ids_of[event], id)
    reply[#reply + 1] = outcome
  elseif not held and result ~= '' and redis.call('GET', KEYS[key + 3]) == result then
    reply[#reply + 1] = 'done'
  else
    reply[#reply + 1] = 'lost'
  end
end
if #ids > 0 then
  queue_push(queue_state, lane_list, entries, wake)
  for job_type, count in pairs(counts) do
    release_slots(KEYS[type_keys + type_numbers[job_type]], count, parked, job_type, wake)
  end
  if #ended > 0 then
    if redis.call('EXISTS', parents) == 1 and mark_parents(parents, settled, ended) then
      reply[1] = 'settled'
    end
    redis.call('PUBLISH', done, table.concat(ended, '\n'))
  end
  if failures > 0 then redis.call('INCRBY', failed, failures) end
  for event, list in pairs(ids_of) do emit(events, events_max, event, now, list) end
end
queue_close(queue_state)
return reply
