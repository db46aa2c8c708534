-- free(counter, count, blocked, kind, wake) -- gives back places of a type, never below none, and
-- wakes who waits for one. `blocked` is false when nobody does.
local function free(counter, count, blocked, kind, wake)
  local left
  if count == 1 then left = redis.call('DECR', counter) else left = redis.call('DECRBY', counter, count) end
  if left < 0 then redis.call('SET', counter, '0') end
  if blocked and redis.call('SREM', blocked, kind) == 1 then redis.call('PUBLISH', wake, 'free') end
end
