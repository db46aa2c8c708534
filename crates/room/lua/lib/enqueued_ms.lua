-- enqueued_ms(id): returns the time of enqueueing from the time bits of a UUIDv7; 0 for another id.
local function enqueued_ms(id)
  local high = tonumber(string.sub(id, 1, 6), 16)
  local low = tonumber(string.sub(id, 7, 8) .. string.sub(id, 10, 13), 16)
  if not high or not low or string.sub(id, 15, 15) ~= '7' then
    return 0
  end
  return high * 16777216 + low
end
