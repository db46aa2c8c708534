-- join(list, from) -- the elements from a position on, with commas.
local function join(list, from)
  return table.concat(list, ',', from)
end
