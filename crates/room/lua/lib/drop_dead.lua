-- drop_dead(lane, positions, most): takes ids off the head of a lane that no longer wait.
local function drop_dead(lane, positions, most)
  for _ = 1, most do
    local head = redis.call('LINDEX', lane, '0')
    if not head or redis.call('ZSCORE', positions, head) then
      return
    end
    redis.call('LPOP', lane)
  end
end
