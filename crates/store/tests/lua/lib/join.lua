-- join(list, from, between) -- the elements from a position on, with something between them.
local function join(list, from, between)
  return table.concat(list, between, from)
end
