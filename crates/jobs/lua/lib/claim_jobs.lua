-- claim_jobs(lost, settled) -- claims the next jobs of a worker, each under a lock and a lease, and
-- gives the reply of `claim`. `lost` and `settled` are what became of the jobs it has completed.
--
-- KEYS 1 to 10 and ARGV 1 to 12, then the pools and types, are those of `claim`. What is only needed
-- for some jobs is only made for those: an idle worker claims one at a time.
--
-- Each pool has a sorted set of the lanes that hold jobs, and so has each type in it. Their scores
-- are lower bounds: the first job of a lane may be younger than its score says, never older. So the
-- lane that ranks best is opened, and gives its jobs for as long as no other can rank better:
--
--   ready sets     lane a 5 | lane b 7 | lane c 9         by the score listed
--   candidates     lane a, opened: its first job is 8     by the real first job
--   next           lane b is opened before a gives a job, because 7 < 8
-- uses: chunked, count_starts, emit, lock_job, may_start, next_lane, queue_close, queue_open,
--       ready_sets, relist_lane, repeat_claim, trim_front, unpark
local function claim_jobs(lost, settled)
  local call = redis.call
  local active, claims, claim_leases, claim_counts, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  local parked_types, waiting, paused_types, index, unindexed = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
  local now, prefix, worker_id, request = tonumber(ARGV[1]), ARGV[2], ARGV[4], ARGV[5]
  local limit, request_slot = tonumber(ARGV[6]), 'r:' .. ARGV[9]

  local queue_state = queue_open(waiting, index, unindexed, ARGV[1],
    { 'v:', 'v:' .. worker_id, request_slot, 'fence' })
  local more, unindexed_count, paused, parked = queue_state.more, 0, false, false
  if call('EXISTS', unindexed, paused_types, parked_types) > 0 then
    unindexed_count, paused = call('LLEN', unindexed), call('SCARD', paused_types) > 0
    parked = call('EXISTS', parked_types) == 1
  end
  local reply = { 'empty', more[1] or 0, unindexed_count, -1, 0, 0, settled and 1 or 0, #lost }
  for n = 1, #lost do reply[8 + n] = lost[n] end
  local head = #reply
  -- A worker that does not know all pools could claim a job before one that goes first.
  if repeat_claim(reply, more[3], request, worker_id, prefix)
    or ARGV[12] ~= '' and ARGV[12] ~= tostring(reply[2]) then
    queue_close(queue_state)
    return reply
  end
  if parked and unpark(parked_types, prefix, now) == 16 then reply[5] = 1 end

  local sets, sets_count, page = ready_sets(prefix, limit, more[2])
  local alone = sets_count == 1 and not sets[1].list[3]
  local started, shut = {}, {}
  local limits = { prefix = prefix, now = now, started = started, running = {} }
  local front = { prefix = prefix, worker_id = worker_id, ttl = ARGV[7], limit = limit, window = nil,
    position = nil, next_at = 1, claimed = { false }, last = 0, locks = nil, unlocked = 0 }
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
    if paused and shut[job_type] == nil then
      shut[job_type] = call('SISMEMBER', paused_types, job_type) == 1
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
      lane = next_lane(set, page, prefix)
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
    if relist_lane(opened[n], prefix, queue_state.seq, alone, reply) then parked = true end
  end
  if parked and count == 0 then
    local due = call('ZRANGEBYSCORE', parked_types, '(' .. ARGV[1], '1e15', 'WITHSCORES', 'LIMIT', '0', '1')
    local wait = due[2] and tonumber(due[2]) - now
    if wait and (reply[4] < 0 or wait < reply[4]) then reply[4] = math.ceil(wait) end
  end
  trim_front(front, queue_state)

  local data = nil
  if count > 0 then
    local keys = { 0 }
    for i = 1, count do keys[i] = prefix .. 'jobs:data:' .. ids[i] end
    data = chunked('MGET', nil, keys)
    for i = count, 1, -1 do
      if not data[i] then
        -- The job was deleted; only its id was still waiting.
        call('DEL', prefix .. 'jobs:lock:' .. ids[i])
        started[job_types[i]] = started[job_types[i]] - 1
        table.remove(ids, i)
        table.remove(job_types, i)
        table.remove(data, i)
        count = count - 1
      end
    end
  end
  if count > 0 then
    -- One token for all of a call: a fence, which grows from claim to claim.
    local token = string.format('%.0f', (more[4] or 0) + 1)
    local status_prefix, names = prefix .. 'jobs:status:', ids[1]
    -- A packed hash is searched from its start; an entry of more than 64 bytes keeps it from being
    -- packed. No job is called '-'.
    local texts, statuses = { '-', '-----------------------------------------------------------------', 0, 0 }, { 0, 0 }
    local latest, text = nil, nil
    for i = 1, count do
      local id, job_type = ids[i], job_types[i]
      if job_type ~= latest then latest, text = job_type, token .. ' ' .. worker_id .. ' ' .. job_type end
      statuses[2 * i - 1], statuses[2 * i] = status_prefix .. id, 'active'
      texts[2 * i + 1], texts[2 * i + 2] = id, text
      reply[head + 2 * i - 1], reply[head + 2 * i] = id, data[i]
    end
    if count > 1 then names = table.concat(ids, '\n') end
    reply[1], reply[6] = 'claimed', token
    chunked('MSET', nil, statuses)
    chunked('SADD', active, ids)
    chunked('HSET', claims, texts)
    call('ZADD', claim_leases, ARGV[8], token)
    call('HSET', claim_counts, token, count == 1 and '1' or count)
    count_starts(prefix, started, per_minute)
    local set = queue_state.set
    local n = #set
    set[n + 1], set[n + 2] = 'fence', token
    set[n + 3], set[n + 4] = request_slot, request .. '\n' .. token .. '\n' .. names
    emit(events, ARGV[3], 'started', ARGV[1], names, worker_id)
  end
  queue_close(queue_state)
  return reply
end
