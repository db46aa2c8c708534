-- free(counter, count, blocked, kind, wake) -- gives back places of a type, never below none, and
-- wakes who waits for one.
local function free(counter, count, blocked, kind, wake)
  if redis.call('DECRBY', counter, count) < 0 then redis.call('SET', counter, 0) end
  if redis.call('SREM', blocked, kind) == 1 then redis.call('PUBLISH', wake, 'free') end
end
