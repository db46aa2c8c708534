-- stopped(status, state, now_ms, stall_ms): are the clocks of waiting places standing still?
-- They do while the queue is not active, and while nobody kept the beat (the service was away).
local function stopped(status, state, now_ms, stall_ms)
  if status ~= 'active' then
    return true
  end
  local beat = num(redis.call('HGET', state, 'beat_ms'))
  return not beat or now_ms - beat > stall_ms
end
