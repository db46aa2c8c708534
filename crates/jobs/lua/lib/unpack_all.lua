-- unpack_all(list, from, to) -- the elements of a list as arguments, in either dialect of Lua.
local function unpack_all(list, from, to)
  return (table.unpack or unpack)(list, from, to)
end
