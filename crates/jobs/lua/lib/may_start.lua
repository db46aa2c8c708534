-- may_start(limits, lane) -- may one more job of a lane start? If not, the second answer is when to
-- look again.
--
-- `limits` holds `now`, and per type the jobs `started` by this call and those `running` before
-- it: counters are read once and kept up as jobs are claimed.
-- reads: prefix, RUNNING_KEY, STARTS_KEY
local function may_start(limits, lane)
  local job_type, concurrent, minute = lane.job_type, lane.concurrent, lane.minute
  local now, started = limits.now, limits.started[job_type] or 0
  if concurrent ~= '' then
    local running = limits.running[job_type]
    if not running then
      running = tonumber(redis.call('GET', prefix .. RUNNING_KEY .. job_type) or 0)
      limits.running[job_type] = running
    end
    if running + started >= tonumber(concurrent) then return false, '+inf' end
  end
  if minute ~= '' then
    local nth = tonumber(minute) - 1 - started
    if nth < 0 then return false, now + 60000 end
    local then_ms = tonumber(redis.call('LINDEX', prefix .. STARTS_KEY .. job_type, nth) or 0)
    if then_ms > now - 60000 then return false, then_ms + 60000 end
  end
  return true
end
