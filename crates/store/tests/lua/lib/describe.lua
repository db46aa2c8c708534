-- describe() -- the keys after the first, and twice the number.
-- uses: double, join
-- reads: rest, number, COMMA
local function describe()
  return join(KEYS, rest + 1, COMMA), double(tonumber(number))
end
