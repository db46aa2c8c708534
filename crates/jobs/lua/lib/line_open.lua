-- line_open(waiting, index, strays, now, more) -- opens the line: reads what the index says of the
-- waiting list, and notices what programs that know only the documented keys have pushed since.
-- `more` names further fields of the index to read.
--
-- The index remembers the ids at both ends of the list, `head` and `tail`: what lies between them
-- has a place in a lane (or is among the strays), what lies beyond them is new. New ids are noted in
-- `strays`, from where a client reads the jobs and gives them their lanes. Work is bounded: at most
-- 500 ids are noted per call, and none while 2000 wait there.
local function line_open(waiting, index, strays, now, more)
  local fields = { 'seq', 'base', 'head', 'tail', 'at', 'looked', 'tombs' }
  for i = 1, #more do fields[7 + i] = more[i] end
  local found = redis.call('HMGET', index, spread(fields))
  local s = {
    waiting = waiting, index = index, strays = strays,
    seq = tonumber(found[1]) or 0,       -- the last number given to an entry
    base = tonumber(found[2]) or 0,      -- number minus base is where an entry should be
    head = found[3] or '', tail = found[4] or '',
    at = tonumber(found[5]) or -1,       -- where the tail mark is, when it is not at the end
    looked = tonumber(found[6]) or 0,    -- when the head was last looked at in doubt
    tombs = tonumber(found[7]) or 0,
    clean = true,                        -- is everything up to the end known?
    set = {},                            -- more fields of the index to write
    more = {},
  }
  for i = 1, #more do s.more[i] = found[7 + i] end

  local function stray(ids)
    local fresh = {}
    for i = 1, #ids do
      if ids[i] ~= '-' then fresh[#fresh + 1] = ids[i] end
    end
    if #fresh > 0 then redis.call('RPUSH', strays, spread(fresh)) end
  end

  local whole = false
  local last = redis.call('LINDEX', waiting, -1)
  if not last then
    s.head, s.tail = '', ''
  elseif last ~= s.tail then
    local at = false
    if s.tail ~= '' then
      if s.at >= 0 and redis.call('LINDEX', waiting, s.at) == s.tail then
        at = s.at
      else
        at = redis.call('LPOS', waiting, s.tail, 'RANK', -1)
      end
    end
    local from = at and at + 1 or 0
    whole = from == 0
    s.at = from - 1
    if redis.call('LLEN', strays) < 2000 then
      local ids = redis.call('LRANGE', waiting, from, from + 499)
      stray(ids)
      s.at = s.at + #ids
    end
    s.clean = redis.call('LLEN', waiting) == s.at + 1
    if s.at >= 0 then s.tail = redis.call('LINDEX', waiting, s.at) else s.tail = '' end
  end

  local first = last and redis.call('LINDEX', waiting, 0)
  if first and first ~= s.head then
    if whole then
      s.head = first
    else
      local at = s.head ~= '' and redis.call('LPOS', waiting, s.head, 'MAXLEN', 500)
      if at then
        stray(redis.call('LRANGE', waiting, 0, at - 1))
        s.head = first
      elseif now - s.looked >= 20 or now < s.looked then
        -- The old head was popped by somebody else. Whether the new one was behind it or was
        -- pushed since cannot be told, so the first few are looked at; twice does no harm.
        stray(redis.call('LRANGE', waiting, 0, 15))
        s.head = first
        s.looked = now
      end
    end
  end
  return s
end
