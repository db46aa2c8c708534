-- finish(position, status, reason, now_ms, ttl): marks a position that exists as ended, and keeps the
-- record for a while so that its holder can read why. Never creates a record.
-- uses: int
local function finish(position, status, reason, now_ms, ttl)
  if redis.call('EXISTS', position) == 0 then
    return
  end
  redis.call('HSET', position, 'status', status, 'reason', reason,
    'ended_at', int(math.floor(now_ms / 1000)))
  redis.call('EXPIRE', position, ttl)
end
