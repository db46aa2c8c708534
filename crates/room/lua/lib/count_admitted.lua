-- count_admitted(state, stats, now_ms, waits): statistics of a batch of admissions; waits in ms.
-- uses: int, num
local function count_admitted(state, stats, now_ms, waits)
  if #waits == 0 then
    return
  end
  local sum, at_once, buckets = 0, 0, {}
  for _, wait in ipairs(waits) do
    sum = sum + wait
    if wait < 1 then
      at_once = at_once + 1
    end
    local b = math.min(39, math.floor(2 * math.log(wait / 1000 + 1) / math.log(2)))
    buckets[b] = (buckets[b] or 0) + 1
  end
  redis.call('HINCRBY', stats, 'total_admitted', int(#waits))
  local total = redis.call('HINCRBY', stats, 'wait_ms_sum', int(sum))
  local count = redis.call('HINCRBY', stats, 'wait_count', int(#waits))
  redis.call('HSET', stats, 'avg_wait_time', int(math.floor(total / count / 1000)))
  for b, n in pairs(buckets) do
    redis.call('HINCRBY', stats, 'wait_' .. int(b), int(n))
  end
  if at_once > 0 then
    redis.call('HINCRBY', stats, 'wait_none', int(at_once))
  end
  redis.call('EXPIRE', stats, '86400', 'NX')
  redis.call('HINCRBY', state, 'total_admitted', int(#waits))
  local minute = math.floor(now_ms / 60000)
  local slot = int(minute % 16)
  if num(redis.call('HGET', state, 'minute_' .. slot), -1) == minute then
    redis.call('HINCRBY', state, 'admitted_' .. slot, int(#waits))
  else
    redis.call('HSET', state, 'minute_' .. slot, int(minute), 'admitted_' .. slot, int(#waits))
  end
  redis.call('HSET', state, 'last_admission_ms', int(now_ms))
end
