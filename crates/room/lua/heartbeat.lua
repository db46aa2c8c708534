-- room/heartbeat -- a sign of life: the place is held for another while.
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 state      hash    counters, clocks
--        3 positions  zset    who waits; score = admission order
--        4 claims     zset    admitted ids; score = claim_by_ms
--        5 position   hash    the place
--        6 heartbeat  zset    last sign of life, Unix seconds
--        7 ipmap      string  the place of this address
-- ARGV   1 now_ms  2 id  3 queue_id  4 level
-- REPLY  {status, …} as room/status
--
-- Keeps: an ended place stays ended. A place in the line whose record ran out of time during an
-- outage gets its record back; the line is the truth.
local meta, state, positions, claims, position = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local heartbeat, ipmap = KEYS[6], KEYS[7]
local now_ms, id = tonumber(ARGV[1]), ARGV[2]
local now_s = int(math.floor(now_ms / 1000))
local ttl = redis.call('HGET', meta, 'position_ttl')
if not ttl then
  return { 'unknown_queue' }
end
if redis.call('ZSCORE', positions, id) then
  if redis.call('EXISTS', position) == 0 then
    redis.call('HSET', position, 'queue_id', ARGV[3], 'session_id', '', 'status', 'waiting',
      'priority', ARGV[4], 'enqueued_at', int(math.floor(joined_ms(id) / 1000)),
      'last_heartbeat', now_s, 'ip_address', '', 'ip_hash', '', 'user_agent', '', 'metadata', '')
  else
    redis.call('HSET', position, 'last_heartbeat', now_s)
  end
  redis.call('EXPIRE', position, ttl)
  redis.call('ZADD', heartbeat, now_s, id)
  if redis.call('GET', ipmap) == id then
    redis.call('EXPIRE', ipmap, ttl)
  end
elseif redis.call('HGET', position, 'status') == 'admitted' then
  redis.call('HSET', position, 'last_heartbeat', now_s)
  redis.call('EXPIRE', position, ttl)
end
return place_view(meta, state, positions, claims, position, now_ms, id)
