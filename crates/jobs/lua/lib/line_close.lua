-- line_close(s) -- closes the line: clears tombs away from the ends, and writes what the index has to
-- remember.
local function line_close(s)
  if s.moved then
    if s.tombs > 0 then
      -- At most 500 at each end; a run of tombs is popped in one go.
      local count = 0
      if redis.call('LINDEX', s.waiting, 0) == '-' then
        local ids = redis.call('LRANGE', s.waiting, 0, 499)
        while ids[count + 1] == '-' do count = count + 1 end
        redis.call('LTRIM', s.waiting, count, -1)
        s.base = s.base + count
        if not s.clean then s.at = s.at - count end
      end
      if s.clean and redis.call('LINDEX', s.waiting, -1) == '-' then
        local ids, last = redis.call('LRANGE', s.waiting, -500, -1), 0
        while ids[#ids - last] == '-' do last = last + 1 end
        redis.call('LTRIM', s.waiting, 0, -1 - last)
        count = count + last
      end
      s.tombs = math.max(0, s.tombs - count)
    end
    s.head = redis.call('LINDEX', s.waiting, 0) or ''
    if s.clean then
      s.tail = redis.call('LINDEX', s.waiting, -1) or ''
    else
      s.tail = s.at >= 0 and redis.call('LINDEX', s.waiting, s.at) or ''
    end
  end
  redis.call('HSET', s.index, 'seq', s.seq, 'base', s.base, 'head', s.head, 'tail', s.tail,
    'at', s.clean and -1 or s.at, 'looked', s.looked, 'tombs', s.tombs, spread(s.set))
end
