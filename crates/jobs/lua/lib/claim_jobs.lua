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
-- uses: lock_job, may_start, next_lane, queue_close, queue_open, ready_sets, record_claim,
--       relist_lane, repeat_claim, trim_front, unpark
-- reads: waiting, index, unindexed, paused, parked, now_ms, worker_id, limit, request_slot, version
local function claim_jobs(lost, settled)
  local call = redis.call
  local now, limit = tonumber(now_ms), tonumber(limit)

  local queue_state = queue_open(waiting, index, unindexed, now_ms,
    { 'v:', 'v:' .. worker_id, 'r:' .. request_slot, 'fence' })
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
  if any_parked and unpark(now) == 16 then reply[5] = 1 end

  local sets, sets_count, page = ready_sets(limit, more[2])
  local alone = sets_count == 1 and not sets[1].list[3]
  local started, shut = {}, {}
  local limits = { now = now, started = started, running = {} }
  local front = { limit = limit, window = nil, position = nil, next_at = 1, claimed = { false },
    last = 0, locks = nil, unlocked = 0 }
  local ids, job_types, per_minute, count = { 0 }, { 0 }, nil, 0
  local looked_at, bound = 0, 4 * limit + 64

  -- Lanes that were opened, and those of them that have more jobs, the best last.
  local opened, opens, candidates, candidate_count, seen = {}, 0, {}, 0, nil
  local function add_candidate(lane)
    local at = candidate_count
    while at > 0 and candidates[at].score < lane.score do
      candidates[at + 1] = candidates[at]
      at = at - 1
    end
    candidates[at + 1], candidate_count = lane, candidate_count + 1
  end
  -- Reads the first jobs of a lane. False if it has none, or if its type may not start.
  local function open_lane(lane)
    local job_type = lane.job_type
    opens = opens + 1
    opened[opens] = lane
    if any_paused and shut[job_type] == nil then
      shut[job_type] = call('SISMEMBER', paused, job_type) == 1
    end
    local may, due = true, nil
    if shut[job_type] then
      may, due = false, '+inf'
    elseif lane.limited then
      may, due = may_start(limits, lane)
    end
    if not may then
      lane.due = due
      return false
    end
    lane.asked = 2 * (limit - count) + 2
    lane.list = call('LRANGE', lane.key, '0', lane.asked - 1)
    if not lane.list[1] then return false end
    lane.score = lane.floor + lane.list[1]
    return true
  end
  -- Claims jobs of a lane for as long as its first job is not younger than its rival.
  local function claim_from(lane, rival)
    if not front.window then front.window = call('LRANGE', waiting, '0', limit + 31) end
    local list, at, job_type, floor = lane.list, lane.at, lane.job_type, lane.floor
    local going = true
    repeat
      if lane.limited then
        local may, due = may_start(limits, lane)
        if not may then
          lane.due = due
          break
        end
      end
      local id = list[at + 1]
      local outcome = lock_job(front, queue_state, id, list[at])
      looked_at = looked_at + 1
      if outcome == 'claimed' then
        count = count + 1
        ids[count], job_types[count] = id, job_type
        started[job_type] = (started[job_type] or 0) + 1
        if lane.minute ~= '' then
          per_minute = per_minute or {}
          per_minute[job_type] = (per_minute[job_type] or 0) + 1
        end
      elseif outcome == 'locked' then
        -- Somebody holds its lock without running it; it goes to the end and is tried again.
        local back = lane.back or {}
        back[#back + 1] = list[at]
        back[#back + 1] = id
        lane.back = back
      end
      at = at + 2
      going = count < limit and looked_at < bound
      if going and at > #list and #list == lane.asked then
        call('LTRIM', lane.key, at - 1, '-1')
        lane.asked = 2 * (limit - count) + 2
        list = call('LRANGE', lane.key, '0', lane.asked - 1)
        lane.list, at = list, 1
      end
    until not going or not list[at] or (rival and floor + list[at] > rival)
    lane.at = at
    if list[at] and not lane.due then
      lane.score = floor + list[at]
      add_candidate(lane)
    end
  end

  while count < limit and looked_at < bound do
    -- The set whose next lane ranks best.
    local set = nil
    for n = 1, sets_count do
      local other = sets[n]
      if other.score and (not set or other.score < set.score) then set = other end
    end
    local lane = candidates[candidate_count]
    if lane and not (set and set.score < lane.score) then
      candidates[candidate_count], candidate_count = nil, candidate_count - 1
    elseif set then
      lane = next_lane(set, page)
      if seen and seen[lane.member] then
        lane = nil
      else
        if sets_count > 1 then
          seen = seen or {}
          seen[lane.member] = true
        end
        if not open_lane(lane) then
          looked_at = looked_at + 1
          lane = nil
        end
      end
    else
      break
    end

    if lane then
      local rival = candidates[candidate_count] and candidates[candidate_count].score
      for n = 1, sets_count do
        local other = sets[n].score
        if other and (not rival or other < rival) then rival = other end
      end
      if rival and rival < lane.score then
        -- Its first job is younger than its entry said; others may come before it.
        add_candidate(lane)
        looked_at = looked_at + 1
      else
        claim_from(lane, rival)
      end
    end
  end
  if count == limit or looked_at >= bound then reply[5] = 1 end

  for n = 1, opens do
    if relist_lane(opened[n], queue_state.seq, alone, reply) then any_parked = true end
  end
  if any_parked and count == 0 then
    local due = call('ZRANGEBYSCORE', parked, '(' .. now_ms, '1e15', 'WITHSCORES', 'LIMIT', '0', '1')
    local wait = due[2] and tonumber(due[2]) - now
    if wait and (reply[4] < 0 or wait < reply[4]) then reply[4] = math.ceil(wait) end
  end
  trim_front(front, queue_state)

  if count > 0 then record_claim(reply, queue_state, ids, job_types, started, per_minute) end
  queue_close(queue_state)
  return reply
end
