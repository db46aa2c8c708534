-- count_address(address, id, now_ms, session_max): counts an admitted position or an active session
-- for an address, for as long as it can last.
-- uses: int, num
local function count_address(address, id, now_ms, session_max)
  redis.call('ZADD', address, int(now_ms), id)
  redis.call('EXPIRE', address, int(num(session_max, 14400) + 3600))
end
