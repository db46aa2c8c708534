-- queue_open(waiting, index, unindexed, now, more) -- opens the line: reads what the index says of the
-- waiting list, and notices what programs that know only the documented keys have pushed since.
-- `more` names further fields of the index to read.
--
-- The index remembers the ids at both ends of the list, `head` and `tail`: what lies between them
-- has a place in a lane (or is among the unindexed), what lies beyond them is new. New ids are noted in
-- `unindexed`, from where a client reads the jobs and gives them their lanes. Work is bounded: at most
-- 500 ids are noted per call at either end, and none at the tail while 2000 wait there.
--
-- Numbers are left as the texts they are stored as where nobody may want to count with them.
-- uses: chunked, unpack_all
local function queue_open(waiting, index, unindexed, now, more)
  local call = redis.call
  local wanted, rest = #more, {}
  local first = wanted
  if first > 1000 then first = 1000 end
  local found = call('HMGET', index, 'seq', 'base', 'head', 'tail', 'at', 'looked', 'tombs',
    unpack_all(more, 1, first)) -- bounded: 1000
  for n = 1, first do rest[n] = found[7 + n] end
  if wanted > first then
    local further = chunked('HMGET', index, more, first + 1)
    for n = 1, #further do rest[first + n] = further[n] end
  end
  local tombstones = found[7]
  local queue_state = {
    waiting = waiting, index = index,
    found = found,                       -- what the index said
    more = rest,                         -- and what it said of the further fields
    seq = found[1] or 0,                 -- the last number given to an entry
    base = found[2] or 0,                -- number minus base is where an entry should be
    head = found[3] or '', tail = found[4] or '',
    at = -1,                             -- where the tail mark is, when it is not at the end
    looked = false,                      -- when the head was looked at in doubt, if it was now
    tombstones = tombstones and tombstones ~= '0' and tonumber(tombstones) or 0,
    clean = true,                        -- is everything up to the end known?
    moved = false,                       -- may other ids be at the ends now?
    set = {},                            -- more fields of the index to write
  }
  local last = call('LINDEX', waiting, '-1')
  if not last then
    queue_state.head, queue_state.tail = '', ''
    return queue_state
  end

  local whole, behind, before = false, nil, nil
  if last ~= queue_state.tail then
    local at, known = false, tonumber(found[5]) or -1
    if queue_state.tail ~= '' then
      if known >= 0 and call('LINDEX', waiting, known) == queue_state.tail then
        at = known
      else
        at = call('LPOS', waiting, queue_state.tail, 'RANK', '-1')
      end
    end
    local from = at and at + 1 or 0
    whole = from == 0
    queue_state.at = from - 1
    if call('LLEN', unindexed) < 2000 then
      behind = call('LRANGE', waiting, from, from + 499)
      queue_state.at = queue_state.at + #behind
    end
    queue_state.clean = call('LLEN', waiting) == queue_state.at + 1
    if queue_state.at >= 0 then queue_state.tail = call('LINDEX', waiting, queue_state.at) else queue_state.tail = '' end
  end
  local first = call('LINDEX', waiting, '0')
  if first ~= queue_state.head then
    if whole then
      queue_state.head = first
    else
      local at = queue_state.head ~= '' and call('LPOS', waiting, queue_state.head, 'MAXLEN', '500')
      local looked, now_ms = tonumber(found[6]) or 0, tonumber(now)
      if at then
        before = call('LRANGE', waiting, 0, at - 1)
        queue_state.head = first
      elseif now_ms - looked >= 20 or now_ms < looked then
        -- The old head was popped by somebody else. Whether the new one was behind it or was
        -- pushed since cannot be told, so the first few are looked at; twice does no harm.
        before = call('LRANGE', waiting, '0', '15')
        queue_state.head = first
        queue_state.looked = now
      end
    end
  end
  if behind or before then
    local fresh = {}
    for _, ids in ipairs({ behind or {}, before or {} }) do
      for i = 1, #ids do
        if ids[i] ~= '-' then fresh[#fresh + 1] = ids[i] end
      end
    end
    if #fresh > 0 then chunked('RPUSH', unindexed, fresh) end
  end
  return queue_state
end
