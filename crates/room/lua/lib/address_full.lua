-- address_full(address, active, limit, now_ms): tells whether an address has reached its limit of
-- sessions. When it seems so, up to 256 of its sessions are checked, and those that ended are dropped; the
-- others get the time as their score, so that the next call checks those that follow.
local function address_full(address, active, limit, now_ms)
  if limit == 0 or redis.call('ZCARD', address) < limit then
    return false
  end
  for _, session_id in ipairs(redis.call('ZRANGE', address, '0', '255')) do
    if redis.call('SISMEMBER', active, session_id) == 0 then
      redis.call('ZREM', address, session_id)
    else
      redis.call('ZADD', address, int(now_ms), session_id)
    end
  end
  return redis.call('ZCARD', address) >= limit
end
