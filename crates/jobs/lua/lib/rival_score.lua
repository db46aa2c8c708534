-- rival_score(round) -- the score of the best lane beside the one just taken; nil if there is none.
local function rival_score(round)
  local candidate, sets = round.candidates[round.candidate_count], round.sets
  local rival = candidate and candidate.score
  for n = 1, round.sets_count do
    local other = sets[n].score
    if other and (not rival or other < rival) then rival = other end
  end
  return rival
end
