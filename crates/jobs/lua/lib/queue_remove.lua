-- queue_remove(queue_state, id, guess, search) -- takes one id out of the waiting list, or answers false if it is
-- not there.
--
-- `guess` is where it should be. Near an end the entry is removed; in the middle, where removing
-- costs as much as the list is long, a tombstone takes its place: '-', an id no job has, which a v1
-- worker drops and maintenance clears away. `search` allows looking through the whole list.
local function queue_remove(queue_state, id, guess, search)
  local length = redis.call('LLEN', queue_state.waiting)
  local at = false
  if guess and guess >= 0 and guess < length and redis.call('LINDEX', queue_state.waiting, guess) == id then
    at = guess
  end
  at = at or redis.call('LPOS', queue_state.waiting, id, 'MAXLEN', 256)
    or redis.call('LPOS', queue_state.waiting, id, 'RANK', -1, 'MAXLEN', 256)
  if not at and search and length > 512 then at = redis.call('LPOS', queue_state.waiting, id) end
  if not at then return false end
  if at < 100 then
    redis.call('LREM', queue_state.waiting, 1, id)
    queue_state.base = queue_state.base + 1
    if not queue_state.clean and at <= queue_state.at then queue_state.at = queue_state.at - 1 end
  elseif length - at <= 100 then
    redis.call('LREM', queue_state.waiting, -1, id)
    if not queue_state.clean and at <= queue_state.at then queue_state.at = queue_state.at - 1 end
  else
    redis.call('LSET', queue_state.waiting, at, '-')
    queue_state.tombstones = queue_state.tombstones + 1
  end
  queue_state.moved = true
  return at
end
