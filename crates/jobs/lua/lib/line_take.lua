-- line_take(s, id, guess, search) -- takes one id out of the waiting list, or answers false if it is
-- not there.
--
-- `guess` is where it should be. Near an end the entry is removed; in the middle, where removing
-- costs as much as the list is long, a tomb takes its place: '-', an id no job has, which a v1
-- worker drops and the keeper clears away. `search` allows looking through the whole list.
local function line_take(s, id, guess, search)
  local length = redis.call('LLEN', s.waiting)
  local at = false
  if guess and guess >= 0 and guess < length and redis.call('LINDEX', s.waiting, guess) == id then
    at = guess
  end
  at = at or redis.call('LPOS', s.waiting, id, 'MAXLEN', 256)
    or redis.call('LPOS', s.waiting, id, 'RANK', -1, 'MAXLEN', 256)
  if not at and search and length > 512 then at = redis.call('LPOS', s.waiting, id) end
  if not at then return false end
  if at < 100 then
    redis.call('LREM', s.waiting, 1, id)
    s.base = s.base + 1
    if not s.clean and at <= s.at then s.at = s.at - 1 end
  elseif length - at <= 100 then
    redis.call('LREM', s.waiting, -1, id)
    if not s.clean and at <= s.at then s.at = s.at - 1 end
  else
    redis.call('LSET', s.waiting, at, '-')
    s.tombs = s.tombs + 1
  end
  s.moved = true
  return at
end
