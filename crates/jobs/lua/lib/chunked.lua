-- chunked(command, key, list, from, to) -- runs a command over a list of any length, at most 1000
-- elements in a call, because Lua's stack ends at about 8000 values. `key` is nil for commands that
-- have none before the list. Lists of pairs stay whole.
--
-- Answers the replies put together: lists one after the other, numbers added up. The second answer
-- is the last reply, which is the length after a push.
-- uses: unpack_all
local function chunked(command, key, list, from, to)
  from, to = from or 1, to or #list
  local total, reply = nil, nil
  while from <= to do
    local last = to
    if last - from >= 1000 then last = from + 999 end
    if key then
      reply = redis.call(command, key, unpack_all(list, from, last)) -- bounded: 1000
    else
      reply = redis.call(command, unpack_all(list, from, last)) -- bounded: 1000
    end
    if total == nil then
      total = reply
    elseif type(reply) == 'number' then
      total = total + reply
    elseif #reply > 0 then
      for n = 1, #reply do total[#total + 1] = reply[n] end
    end
    from = last + 1
  end
  return total, reply
end
