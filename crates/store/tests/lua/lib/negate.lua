-- negate(n) -- minus n, which is an error if it is no number.
local function negate(n)
  return -n
end
