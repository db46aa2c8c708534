-- add_candidate(round, lane) -- puts a lane that has more jobs among the candidates: the best last.
local function add_candidate(round, lane)
  local candidates, at = round.candidates, round.candidate_count
  while at > 0 and candidates[at].score < lane.score do
    candidates[at + 1] = candidates[at]
    at = at - 1
  end
  candidates[at + 1], round.candidate_count = lane, round.candidate_count + 1
end
