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
local read = read_place(meta, state, positions, position, id)
if not read then
  return { 'unknown_queue' }
end
local now_s = int(math.floor(now_ms / 1000))
local p, ttl = read.p, read.m[5]
if read.rank then
  if p[1] then
    redis.call('HSET', position, 'last_heartbeat', now_s)
  else
    p[4], p[5] = ARGV[4], int(math.floor(joined_ms(id) / 1000))
    redis.call('HSET', position, 'queue_id', ARGV[3], 'session_id', '', 'status', 'waiting',
      'priority', p[4], 'enqueued_at', p[5], 'last_heartbeat', now_s,
      'ip_address', '', 'ip_hash', '', 'user_agent', '', 'metadata', '')
  end
  redis.call('EXPIRE', position, ttl)
  redis.call('ZADD', heartbeat, now_s, id)
  if read.m[6] == 'ip' and redis.call('GET', ipmap) == id then
    redis.call('EXPIRE', ipmap, ttl)
  end
  p[7] = now_s
elseif p[1] == 'admitted' then
  redis.call('HSET', position, 'last_heartbeat', now_s)
  redis.call('EXPIRE', position, ttl)
  p[7] = now_s
end
return place_view(read, positions, claims, now_ms, id)
