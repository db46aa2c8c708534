-- drop_tombstones(lane, positions, most): pops ids that no longer wait off the head of a lane.
local function drop_tombstones(lane, positions, most)
  for _ = 1, most do
    local head = redis.call('LINDEX', lane, '0')
    if not head or redis.call('ZSCORE', positions, head) then
      return
    end
    redis.call('LPOP', lane)
  end
end
