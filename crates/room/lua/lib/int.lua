-- int(x): a whole number as text, without exponent or fraction on any Lua.
local function int(x)
  return string.format('%.0f', x)
end
