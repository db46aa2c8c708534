-- trim_front(front, queue_state) -- removes the claimed ids from the front of the waiting list in one
-- go, and puts back those between them that were not claimed.
-- uses: chunked
local function trim_front(front, queue_state)
  local call, window, claimed, last = redis.call, front.window, front.claimed, front.last
  if last == 0 then return end
  local keep = nil
  for at = last, 1, -1 do
    if not claimed[at] then
      keep = keep or {}
      keep[#keep + 1] = window[at]
    end
  end
  queue_state.base = queue_state.base + last - (keep and #keep or 0)
  if not queue_state.clean then
    local known = queue_state.at + 1
    for at = 1, math.min(last, known) do
      if claimed[at] then queue_state.at = queue_state.at - 1 end
    end
  end
  if not keep and not queue_state.moved and last == #window and last < front.limit + 32 then
    -- That was all of it.
    call('DEL', queue_state.waiting)
    queue_state.head, queue_state.tail, queue_state.tombstones = '', '', 0
  else
    call('LTRIM', queue_state.waiting, last, '-1')
    if keep then chunked('LPUSH', queue_state.waiting, keep) end
    queue_state.moved = true
  end
end
