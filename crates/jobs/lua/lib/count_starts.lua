-- count_starts(started, per_minute) -- counts started jobs per type: as running, and, for types with a
-- limit per minute, by the time of their start. The list of starts keeps the last minute.
-- reads: now_ms, prefix, RUNNING_KEY, STARTS_KEY, MINUTE_KEY
local function count_starts(started, per_minute)
  local call, now = redis.call, tonumber(now_ms)
  for job_type, places in pairs(started) do
    if places > 0 then
      call('INCRBY', prefix .. RUNNING_KEY .. job_type, places == 1 and '1' or places)
    end
  end
  if not per_minute then return end
  for job_type, places in pairs(per_minute) do
    local starts, minute = prefix .. STARTS_KEY .. job_type, prefix .. MINUTE_KEY .. job_type
    for _ = 1, places do
      call('LPUSH', starts, now_ms)
      for _ = 1, 2 do
        local oldest = tonumber(call('LINDEX', starts, '-1'))
        if oldest > now - 60000 then break end
        call('RPOP', starts)
      end
    end
    call('EXPIRE', starts, '120')
    if call('INCRBY', minute, places) == places then call('EXPIRE', minute, '60') end
  end
end
