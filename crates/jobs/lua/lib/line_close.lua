-- line_close(s) -- closes the line: clears tombs away from the ends, and writes what the index has to
-- remember, if that has changed.
local function line_close(s)
  local call, found, set = redis.call, s.found, s.set
  local tombs = s.tombs
  if s.moved then
    if tombs > 0 then
      -- At most 500 at each end; a run of tombs is popped in one go.
      local count = 0
      if call('LINDEX', s.waiting, '0') == '-' then
        local ids = call('LRANGE', s.waiting, '0', '499')
        while ids[count + 1] == '-' do count = count + 1 end
        call('LTRIM', s.waiting, count, '-1')
        s.base = s.base + count
        if not s.clean then s.at = s.at - count end
      end
      if s.clean and call('LINDEX', s.waiting, '-1') == '-' then
        local ids, last = call('LRANGE', s.waiting, '-500', '-1'), 0
        while ids[#ids - last] == '-' do last = last + 1 end
        call('LTRIM', s.waiting, '0', -1 - last)
        count = count + last
      end
      tombs = math.max(0, tombs - count)
    end
    s.head = call('LINDEX', s.waiting, '0') or ''
    if s.clean then
      s.tail = s.head ~= '' and call('LINDEX', s.waiting, '-1') or ''
    else
      s.tail = s.at >= 0 and call('LINDEX', s.waiting, s.at) or ''
    end
  end
  if not s.clean or (found[5] and found[5] ~= '-1') then
    set[#set + 1] = 'at'
    set[#set + 1] = s.clean and '-1' or s.at
  end
  if s.looked then
    set[#set + 1] = 'looked'
    set[#set + 1] = s.looked
  end
  if tombs > 0 or (found[7] and found[7] ~= '0') then
    set[#set + 1] = 'tombs'
    set[#set + 1] = tombs
  end
  if set[1] or s.base ~= found[2] or s.head ~= found[3] or s.tail ~= found[4] or s.seq ~= found[1] then
    if set[1001] then
      chunked('HSET', s.index, set)
      set = {}
    end
    call('HSET', s.index, 'seq', s.seq, 'base', s.base, 'head', s.head, 'tail', s.tail,
      spread(set)) -- bounded: 1000
  end
end
