-- relist_lane(lane, seq, alone, reply) -- trims a lane that jobs were claimed from, and lists
-- it where it ranks now, parks it if its type may not start, or takes it off if it is empty. Answers
-- whether it is parked.
--
-- A lane that is `alone` keeps its score, which is a lower bound all the same.
-- uses: chunked, rank
-- reads: parked, prefix, READY_KEY, PARKED_KEY, KEY_SEPARATOR
local function relist_lane(lane, seq, alone, reply)
  local call, list, at, key, first = redis.call, lane.list, lane.at, lane.key, nil
  if list then
    local over = at > #list
    if over and #list < lane.asked then
      -- That was all of it.
      if list[1] then call('DEL', key) end
    elseif at > 1 then
      call('LTRIM', key, at - 1, '-1')
      first = over and call('LINDEX', key, '0') or list[at]
    else
      first = list[at]
    end
    if lane.back then
      chunked('RPUSH', key, lane.back)
      if reply[4] < 0 or reply[4] > 250 then reply[4] = 250 end
      -- Those that were not locked go before it.
      first = first or seq
    end
  end
  local ready, member = prefix .. READY_KEY .. lane.pool, lane.member
  local typed = ready .. KEY_SEPARATOR .. lane.job_type
  if lane.due then
    local score = first and lane.floor + first or lane.listed
    local last = string.format('%.0f', score + PARKED)
    call('ZADD', ready, last, member)
    call('ZADD', typed, last, member)
    call('ZADD', prefix .. PARKED_KEY .. lane.job_type, string.format('%.0f', score), lane.pool .. ' ' .. member)
    call('ZADD', parked, 'LT', lane.due, lane.job_type)
    return true
  elseif not first then
    call('ZREM', ready, member)
    call('ZREM', typed, member)
  else
    local score = lane.floor + first
    if score < lane.listed or score > lane.listed and not alone then
      score = string.format('%.0f', score)
      call('ZADD', ready, score, member)
      call('ZADD', typed, score, member)
    end
  end
  return false
end
