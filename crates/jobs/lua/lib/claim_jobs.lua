-- claim_jobs(lost, settled) -- claims the next jobs of a worker, each under a lock and a lease, and
-- gives the reply of `claim`. `lost` and `settled` are what became of the jobs it has completed.
--
-- What is only needed for some jobs is only made for those: an idle worker claims one at a time.
--
-- Each pool has a sorted set of the lanes that hold jobs, and so has each type in it. Their scores
-- are lower bounds: the first job of a lane may be younger than its score says, never older. So the
-- lane that ranks best is opened, and gives its jobs for as long as no other can rank better:
--
--   ready sets     lane a 5 | lane b 7 | lane c 9         by the score listed
--   candidates     lane a, opened: its first job is 8     by the real first job
--   next           lane b is opened before a gives a job, because 7 < 8
--
-- One claim is a `round`: `limit` jobs at most, `count` claimed (`ids`, their `job_types`), `looked_at`
-- of at most `bound` jobs and lanes; `sets` to open lanes from, `opened` lanes, `candidates` among them.
-- uses: add_candidate, best_lane, claim_from, queue_close, queue_open, ready_sets, record_claim,
--       relist_lane, repeat_claim, rival_score, trim_front, unpark
-- reads: waiting, index, unindexed, paused, parked, now_ms, worker_id, limit, request_slot, version
local function claim_jobs(lost, settled)
  local call = redis.call
  local now, limit = tonumber(now_ms), tonumber(limit)

  local queue_state = queue_open(waiting, index, unindexed, now_ms,
    { 'v:', 'v:' .. worker_id, 'r:' .. request_slot, 'fence', 'd:' .. worker_id })
  local more, unindexed_count, any_paused, any_parked = queue_state.more, 0, false, false
  if call('EXISTS', unindexed, paused, parked) > 0 then
    unindexed_count, any_paused = call('LLEN', unindexed), call('SCARD', paused) > 0
    any_parked = call('EXISTS', parked) == 1
  end
  local reply = { 'empty', more[1] or 0, unindexed_count, -1, 0, 0, settled and 1 or 0, #lost }
  for n = 1, #lost do reply[8 + n] = lost[n] end
  -- A worker that does not know all pools could claim a job before one that goes first.
  if repeat_claim(reply, more[3]) or version ~= '' and version ~= tostring(reply[2]) then
    queue_close(queue_state)
    return reply
  end
  -- An operator drains the worker: it completes what it holds, and gets nothing new.
  if more[5] then
    reply[1] = 'draining'
    queue_close(queue_state)
    return reply
  end
  if any_parked and unpark(now) == 16 then reply[5] = 1 end

  local sets, sets_count, page = ready_sets(limit, more[2])
  local alone = sets_count == 1 and not sets[1].list[3]
  local front = { limit = limit, window = nil, position = nil, next_at = 1, claimed = { false },
    last = 0, locks = nil, unlocked = 0 }
  local round = { limit = limit, count = 0, ids = { 0 }, job_types = { 0 }, per_minute = nil,
    looked_at = 0, bound = 4 * limit + 64, sets = sets, sets_count = sets_count, page = page,
    seen = {}, opened = {}, candidates = {}, candidate_count = 0, any_paused = any_paused,
    shut = {}, limits = { now = now, started = {}, running = {} }, front = front,
    queue_state = queue_state }
  while round.count < limit and round.looked_at < round.bound do
    local lane = best_lane(round)
    if lane == nil then break end
    if lane then
      local rival = rival_score(round)
      if rival and rival < lane.score then
        -- Its first job is younger than its entry said; others may come before it.
        add_candidate(round, lane)
        round.looked_at = round.looked_at + 1
      else
        claim_from(round, lane, rival)
      end
    end
  end
  if round.count == limit or round.looked_at >= round.bound then reply[5] = 1 end

  for n = 1, #round.opened do
    if relist_lane(round.opened[n], queue_state.seq, alone, reply) then any_parked = true end
  end
  if any_parked and round.count == 0 then
    local due = call('ZRANGEBYSCORE', parked, '(' .. now_ms, '1e15', 'WITHSCORES', 'LIMIT', '0', '1')
    local wait = due[2] and tonumber(due[2]) - now
    if wait and (reply[4] < 0 or wait < reply[4]) then reply[4] = math.ceil(wait) end
  end
  trim_front(front, queue_state)

  if round.count > 0 then record_claim(reply, round) end
  queue_close(queue_state)
  return reply
end
