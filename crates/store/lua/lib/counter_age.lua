-- counter_age(full, units, window_ms) -- how far into a window only `units` of the last one's `full` count.
local function counter_age(full, units, window_ms)
  return math.max(0, math.ceil(window_ms - units * window_ms / full))
end
