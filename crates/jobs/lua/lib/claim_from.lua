-- claim_from(round, lane, rival) -- claims jobs of a lane for as long as its first job is not younger
-- than `rival`, the score of the next best lane.
-- uses: add_candidate, lock_job, may_start
-- reads: waiting
local function claim_from(round, lane, rival)
  local call, limit, bound, front = redis.call, round.limit, round.bound, round.front
  if not front.window then front.window = call('LRANGE', waiting, '0', limit + 31) end
  local list, at, job_type, floor = lane.list, lane.at, lane.job_type, lane.floor
  local limits, queue_state = round.limits, round.queue_state
  local started, count, looked_at = limits.started, round.count, round.looked_at
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
      round.ids[count], round.job_types[count] = id, job_type
      started[job_type] = (started[job_type] or 0) + 1
      if lane.minute ~= '' then
        local per_minute = round.per_minute or {}
        per_minute[job_type] = (per_minute[job_type] or 0) + 1
        round.per_minute = per_minute
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
  lane.at, round.count, round.looked_at = at, count, looked_at
  if list[at] and not lane.due then
    lane.score = floor + list[at]
    add_candidate(round, lane)
  end
end
