-- address_full(address, admitted, active, limit, now_ms): tells whether an address has reached its
-- limit of admitted positions and active sessions. When it seems so, up to 256 members are checked, and
-- those that are neither any more are dropped; the others get the time as their score, so that the next
-- call checks those that follow. So nothing has to be taken out when a position or session ends.
-- uses: int
local function address_full(address, admitted, active, limit, now_ms)
  if limit == 0 or redis.call('ZCARD', address) < limit then
    return false
  end
  for _, id in ipairs(redis.call('ZRANGE', address, '0', '255')) do
    if redis.call('SISMEMBER', active, id) == 1 or redis.call('ZSCORE', admitted, id) then
      redis.call('ZADD', address, int(now_ms), id)
    else
      redis.call('ZREM', address, id)
    end
  end
  return redis.call('ZCARD', address) >= limit
end
