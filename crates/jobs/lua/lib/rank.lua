-- rank(priority, number) -- the score of a lane among those that hold jobs: the highest priority
-- first, within one the lane whose first job has the lowest number.
--
-- A number has less than fourteen digits, and a parked lane ranks behind all others by PARKED.
local PARKED = 2e15
local function rank(priority, number)
  return string.format('%.0f', (10 - priority) * 1e14 + number)
end
