-- double(n) -- twice n.
local function double(n)
  return n * 2
end
