-- best_lane(round) -- takes the lane that ranks best: a candidate, or the next lane of a ready set,
-- which it opens. Answers nil when no lane is left, and false for one that gives no job now.
-- uses: first_jobs, next_lane
local function best_lane(round)
  local sets, set = round.sets, nil
  for n = 1, round.sets_count do
    local other = sets[n]
    if other.score and (not set or other.score < set.score) then set = other end
  end
  local candidates, count = round.candidates, round.candidate_count
  local lane = candidates[count]
  if lane and not (set and set.score < lane.score) then
    candidates[count], round.candidate_count = nil, count - 1
    return lane
  end
  if not set then return nil end
  lane = next_lane(set, round.page)
  if round.sets_count > 1 then
    -- Two sets may list the same lane.
    if round.seen[lane.member] then return false end
    round.seen[lane.member] = true
  end
  if first_jobs(round, lane) then return lane end
  round.looked_at = round.looked_at + 1
  return false
end
