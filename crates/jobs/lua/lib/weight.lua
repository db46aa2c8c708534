-- weight(priority) -- what a priority weighs in the mask of a route: a bit of its own.
local WEIGHTS = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 }
local function weight(priority)
  return WEIGHTS[priority]
end
