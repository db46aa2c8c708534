-- release_slots(counter, count, parked, job_type, wake) -- gives back places of a type, never below none, and
-- wakes who waits for one. `parked` is false when nobody does.
local function release_slots(counter, count, parked, job_type, wake)
  local left
  if count == 1 then left = redis.call('DECR', counter) else left = redis.call('DECRBY', counter, count) end
  if left < 0 then redis.call('SET', counter, '0') end
  if parked and redis.call('ZADD', parked, 'XX', 'CH', '0', job_type) == 1 then
    redis.call('PUBLISH', wake, 'free')
  end
end
