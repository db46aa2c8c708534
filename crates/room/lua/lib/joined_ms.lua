-- joined_ms(id): when a place was taken, from the time bits of its UUIDv7.
local function joined_ms(id)
  return tonumber(string.sub(id, 1, 6), 16) * 16777216
    + tonumber(string.sub(id, 7, 8) .. string.sub(id, 10, 13), 16)
end
