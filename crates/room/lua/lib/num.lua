-- num(x, default): a stored text as a number; absent or empty gives the default.
local function num(x, default)
  return tonumber(x or '') or default
end
