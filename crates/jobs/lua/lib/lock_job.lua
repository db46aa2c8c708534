-- lock_job(front, queue_state, id, number) -- takes a job out of the waiting list and locks it for the
-- worker. Answers 'claimed', 'locked' (somebody else holds its lock) or 'gone' (it is not waiting).
--
-- `front` is the front of the waiting list as this call has read it: `limit`; `window` its ids; `position` of each id, made when needed; `next_at`, where the next job is expected;
-- `claimed` by position and `last`, the last claimed position; `locks`, the lock keys of the first
-- ids, of which `unlocked` are known to be free. `number` is the job's number in its lane.
-- uses: chunked, queue_remove
-- reads: prefix, worker_id, lock_ttl_s, LOCK_KEY, STATUS_KEY
local function lock_job(front, queue_state, id, number)
  local call, window, lock = redis.call, front.window, prefix .. LOCK_KEY
  -- Lanes and waiting list mostly agree, so the next position is tried before a map of all is made.
  local at = nil
  if window[front.next_at] == id then
    at = front.next_at
    front.next_at = at + 1
  else
    local position = front.position
    if not position then
      position = {}
      for n = #window, 1, -1 do position[window[n]] = n end
      front.position = position
    end
    at = position[id]
  end
  if at and not front.claimed[at] then
    -- One EXISTS asks for all of the first ids: nearly always none is locked. With GET a lock answers
    -- nothing instead of a table that says OK, unless the id is in the list twice and was locked a
    -- moment ago.
    local locks = front.locks
    if not locks then
      locks = {}
      local first = math.min(front.limit, #window)
      if first > 1 then
        for n = 1, first do locks[n] = lock .. window[n] end
        if chunked('EXISTS', nil, locks) == 0 then front.unlocked = first end
      end
      front.locks = locks
    end
    if at <= front.unlocked and not call('SET', locks[at], worker_id, 'GET', 'EX', lock_ttl_s)
      or at > front.unlocked and call('SET', lock .. id, worker_id, 'NX', 'EX', lock_ttl_s) then
      front.claimed[at] = true
      if at > front.last then front.last = at end
      return 'claimed'
    end
    return 'locked'
  end
  -- A lane may still name a job that others took; only what is in the waiting list is claimed.
  local status = call('GET', prefix .. STATUS_KEY .. id)
  if call('EXISTS', lock .. id) == 1 then return status == 'active' and 'gone' or 'locked' end
  local ended = status == 'completed' or status == 'dead' or status == 'failed' or status == 'active'
  if not queue_remove(queue_state, id, number - queue_state.base, not ended) then return 'gone' end
  call('SET', lock .. id, worker_id, 'EX', lock_ttl_s)
  return 'claimed'
end
