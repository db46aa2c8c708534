-- return_to_lane(lane, positions, id, score): puts a returned id where its score belongs, which is
-- at or near the head of the list: only other returned ids are before it.
-- uses: int
local function return_to_lane(lane, positions, id, score)
  for chunk = 0, 63 do
    local part = redis.call('LRANGE', lane, int(chunk * 64), int(chunk * 64 + 63))
    for _, other in ipairs(part) do
      if other == id then
        return
      end
      local theirs = redis.call('ZSCORE', positions, other)
      if theirs and (tonumber(theirs) > score or (tonumber(theirs) == score and other > id)) then
        redis.call('LINSERT', lane, 'BEFORE', other, id)
        return
      end
    end
    if #part < 64 then
      redis.call('RPUSH', lane, id)
      return
    end
  end
  redis.call('LPUSH', lane, id)
end
