-- repeat_claim(reply, recorded) -- fills the reply to a request that was
-- made before and whose reply got lost: the jobs it claimed that its worker still runs. `recorded` is
-- the latest request of the slot; answers false if that is another one.
-- reads: claims, prefix, worker_id, request, DATA_KEY
local function repeat_claim(reply, recorded)
  if not recorded or string.sub(recorded, 1, #request + 1) ~= request .. '\n' then return false end
  local token, own = nil, nil
  for word in string.gmatch(string.sub(recorded, #request + 2), '[^\n]+') do
    if not token then
      token = word
      own = token .. ' ' .. worker_id .. ' '
      reply[6] = token
    else
      local claim = redis.call('HGET', claims, word)
      if claim and string.sub(claim, 1, #own) == own then
        reply[1] = 'claimed'
        reply[#reply + 1] = word
        reply[#reply + 1] = redis.call('GET', prefix .. DATA_KEY .. word)
      end
    end
  end
  return true
end
