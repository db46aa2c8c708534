-- spread(list) -- the elements of a list as arguments, in either dialect of Lua.
local function spread(list)
  return (table.unpack or unpack)(list)
end
