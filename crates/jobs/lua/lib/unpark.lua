-- unpark(now) -- lists lanes again whose type may have a free place, at most 16 types
-- and 100 lanes of each. Answers how many types that were.
--
-- Of a type with more lanes the next follow after a moment, so that a type at its limit does not
-- move all its lanes with every claim.
-- uses: chunked, rank
-- reads: parked, prefix, PARKED_KEY, READY_KEY, LANE_KEY, KEY_SEPARATOR
local function unpark(now)
  local call = redis.call
  local due = call('ZRANGEBYSCORE', parked, '-inf', now, 'LIMIT', '0', '16')
  for n = 1, #due do
    local job_type = due[n]
    local key = prefix .. PARKED_KEY .. job_type
    local entries = call('ZRANGE', key, '0', '99')
    for i = 1, #entries do
      local pool, member, rid, priority = string.match(entries[i], '^(%w+) ((%w+) (%d+) .*)$')
      if pool then
        local ready = prefix .. READY_KEY .. pool
        local first = call('LINDEX', prefix .. LANE_KEY .. rid .. KEY_SEPARATOR .. priority, '0')
        if first then
          local score = rank(priority, first)
          call('ZADD', ready, score, member)
          call('ZADD', ready .. KEY_SEPARATOR .. job_type, score, member)
        else
          call('ZREM', ready, member)
          call('ZREM', ready .. KEY_SEPARATOR .. job_type, member)
        end
      end
    end
    if entries[1] then chunked('ZREM', key, entries) end
    if entries[100] then
      call('ZADD', parked, now + 50, job_type)
    else
      call('ZREM', parked, job_type)
    end
  end
  return #due
end
