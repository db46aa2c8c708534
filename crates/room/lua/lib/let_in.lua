-- let_in(k, id, position, score, session_id, now_ms, claim_ms): one waiting place becomes
-- admitted: out of the line, under a claim deadline. Returns how long it waited, in ms.
local function let_in(k, id, position, score, session_id, now_ms, claim_ms)
  local now_s = int(math.floor(now_ms / 1000))
  redis.call('ZREM', k.positions, id)
  redis.call('ZREM', k.heartbeat, id)
  redis.call('ZADD', k.claims, int(now_ms + claim_ms), id)
  redis.call('HSET', position, 'queue_id', k.queue_id, 'status', 'admitted',
    'session_id', session_id, 'admitted_at', now_s, 'score', score)
  redis.call('EXPIRE', position, k.position_ttl)
  emit(k.events, 'position.admitted', now_ms,
    '{"position_id":"' .. id .. '","session_id":"' .. session_id .. '"}')
  local joined = joined_ms(id)
  return joined == 0 and 0 or math.max(0, now_ms - joined)
end
