-- admit_one(k, id, position, score, session_id, now_ms, window_ms): admits one waiting position:
-- moves it from the queue to the admitted set. Returns how long it waited, in ms.
-- uses: emit, enqueued_ms, int
local function admit_one(k, id, position, score, session_id, now_ms, window_ms)
  local now_s = int(math.floor(now_ms / 1000))
  redis.call('ZREM', k.positions, id)
  redis.call('ZREM', k.heartbeat, id)
  redis.call('ZADD', k.admitted, int(now_ms + window_ms), id)
  redis.call('HSET', position, 'queue_id', k.queue_id, 'status', 'admitted',
    'session_id', session_id, 'admitted_at', now_s, 'score', score)
  redis.call('EXPIRE', position, k.position_ttl)
  emit(k.events, 'position.admitted', now_ms,
    '{"position_id":"' .. id .. '","session_id":"' .. session_id .. '"}')
  local enqueued = enqueued_ms(id)
  return enqueued == 0 and 0 or math.max(0, now_ms - enqueued)
end
