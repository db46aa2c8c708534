-- first_jobs(round, lane) -- reads the first jobs of a lane. False if it has none, or if its type may
-- not start; then `due` says when to look again.
-- uses: may_start
-- reads: paused
local function first_jobs(round, lane)
  local call, job_type, shut = redis.call, lane.job_type, round.shut
  round.opened[#round.opened + 1] = lane
  if round.any_paused and shut[job_type] == nil then
    shut[job_type] = call('SISMEMBER', paused, job_type) == 1
  end
  local may, due = true, nil
  if shut[job_type] then
    may, due = false, '+inf'
  elseif lane.limited then
    may, due = may_start(round.limits, lane)
  end
  if not may then
    lane.due = due
    return false
  end
  lane.asked = 2 * (round.limit - round.count) + 2
  lane.list = call('LRANGE', lane.key, '0', lane.asked - 1)
  if not lane.list[1] then return false end
  lane.score = lane.floor + lane.list[1]
  return true
end
