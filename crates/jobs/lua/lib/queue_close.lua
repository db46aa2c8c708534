-- queue_close(queue_state) -- closes the line: clears tombstones away from the ends, and writes what the index has to
-- remember, if that has changed.
-- uses: chunked, unpack_all
local function queue_close(queue_state)
  local call, found, set = redis.call, queue_state.found, queue_state.set
  local tombstones = queue_state.tombstones
  if queue_state.moved then
    if tombstones > 0 then
      -- At most 500 at each end; a run of tombstones is popped in one go.
      local count = 0
      if call('LINDEX', queue_state.waiting, '0') == '-' then
        local ids = call('LRANGE', queue_state.waiting, '0', '499')
        while ids[count + 1] == '-' do count = count + 1 end
        call('LTRIM', queue_state.waiting, count, '-1')
        queue_state.base = queue_state.base + count
        if not queue_state.clean then queue_state.at = queue_state.at - count end
      end
      if queue_state.clean and call('LINDEX', queue_state.waiting, '-1') == '-' then
        local ids, last = call('LRANGE', queue_state.waiting, '-500', '-1'), 0
        while ids[#ids - last] == '-' do last = last + 1 end
        call('LTRIM', queue_state.waiting, '0', -1 - last)
        count = count + last
      end
      tombstones = math.max(0, tombstones - count)
    end
    queue_state.head = call('LINDEX', queue_state.waiting, '0') or ''
    if queue_state.clean then
      queue_state.tail = queue_state.head ~= '' and call('LINDEX', queue_state.waiting, '-1') or ''
    else
      queue_state.tail = queue_state.at >= 0 and call('LINDEX', queue_state.waiting, queue_state.at) or ''
    end
  end
  if not queue_state.clean or (found[5] and found[5] ~= '-1') then
    set[#set + 1] = 'at'
    set[#set + 1] = queue_state.clean and '-1' or queue_state.at
  end
  if queue_state.looked then
    set[#set + 1] = 'looked'
    set[#set + 1] = queue_state.looked
  end
  if tombstones > 0 or (found[7] and found[7] ~= '0') then
    set[#set + 1] = 'tombs'
    set[#set + 1] = tombstones
  end
  if set[1] or queue_state.base ~= found[2] or queue_state.head ~= found[3] or queue_state.tail ~= found[4] or queue_state.seq ~= found[1] then
    if set[1001] then
      chunked('HSET', queue_state.index, set)
      set = {}
    end
    call('HSET', queue_state.index, 'seq', queue_state.seq, 'base', queue_state.base, 'head', queue_state.head, 'tail', queue_state.tail,
      unpack_all(set)) -- bounded: 1000
  end
end
