-- weight(priority) -- what a priority weighs in the mask of a route: a bit of its own.
local function weight(priority)
  local weight = 1
  for _ = 2, priority do weight = weight * 2 end
  return weight
end
