-- helper(now_ms) -- hands on.
-- reads: limit
local function helper(now_ms)
  return other(now_ms)
end
