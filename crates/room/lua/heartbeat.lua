-- room/heartbeat -- signs of life: the places are held for another while.
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 state      hash    counters, clocks
--        3 positions  zset    who waits; score = admission order
--        4 claims     zset    admitted ids; score = claim_by_ms
--        5 heartbeat  zset    last sign of life, Unix seconds
--        6 ..places   hash    the places; the id is the end of the name. Behind them, if an address
--                             has one place only, the address of each: a string, the id of its place
-- ARGV   1 now_ms  2 queue_id  3 levels
-- REPLY  as room/status; a place whose level is known, if it waits, is only its position
--
-- One character of levels for each place: its level, or '-' if the caller does not know it.
--
-- Keeps: an ended place stays ended. A place in the line whose record ran out of time during an
-- outage gets its record back; the line is the truth.
local meta, state, positions, claims, heartbeat = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now_ms, queue_id, levels = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local queue = read_queue(meta, state, positions, now_ms)
if not queue then
  return { 'unknown_queue' }
end
local count, ttl, line = #levels, queue.ttl, queue.line
local now_s = int(math.floor(now_ms / 1000))
local by_address = queue.duplicates == 'ip' and #KEYS == 5 + 2 * count
local reply = { 'places', queue.status, queue.message, queue.total, queue.epoch }
local seen = {}
for i = 1, count do
  local position, level = KEYS[5 + i], string.sub(levels, i, i)
  local id = string.sub(position, -36)
  local rank = redis.call('ZRANK', positions, id)
  if rank then
    -- A field that is new belongs to a record that was lost, or is not ours.
    if redis.call('HSET', position, 'last_heartbeat', now_s) == 1
      and not redis.call('HGET', position, 'status') then
      redis.call('HSET', position, 'queue_id', queue_id, 'session_id', '', 'status', 'waiting',
        'priority', level == '-' and '0' or level,
        'enqueued_at', int(math.floor(joined_ms(id) / 1000)),
        'ip_address', '', 'ip_hash', '', 'user_agent', '', 'metadata', '')
    end
    redis.call('EXPIRE', position, ttl)
    seen[#seen + 1], seen[#seen + 2] = now_s, id
    if by_address and redis.call('GET', KEYS[5 + count + i]) == id then
      redis.call('EXPIRE', KEYS[5 + count + i], ttl)
    end
  elseif redis.call('HGET', position, 'status') == 'admitted' then
    redis.call('HSET', position, 'last_heartbeat', now_s)
    redis.call('EXPIRE', position, ttl)
  end
  if not rank or level == '-' then
    tell_place(reply, queue, positions, claims, position, id, rank)
  elseif line.share == 0 then
    reply[#reply + 1] = rank + 1
  else
    reply[#reply + 1] = int(shown(positions, line, rank, queue.total))
  end
end
if #seen > 0 then
  redis.call('ZADD', heartbeat, (unpack or table.unpack)(seen))
end
return reply
