-- clocks_stopped(status, state, now_ms, stall_ms): returns true if the clocks of waiting positions stand
-- still: while the queue is not active, and while no maintenance tick was recorded (an outage).
-- uses: num
local function clocks_stopped(status, state, now_ms, stall_ms)
  if status ~= 'active' then
    return true
  end
  local beat = num(redis.call('HGET', state, 'beat_ms'))
  return not beat or now_ms - beat > stall_ms
end
