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
local call, sub, keys = redis.call, string.sub, KEYS
local meta, state, positions, claims, heartbeat = keys[1], keys[2], keys[3], keys[4], keys[5]
local now_ms, queue_id, levels = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local queue = read_queue(meta, state, positions, now_ms)
if not queue then
  return { 'unknown_queue' }
end
local count, ttl, line, total = #levels, queue.ttl, queue.line, queue.total
local now_s = int(math.floor(now_ms / 1000))
local by_address = queue.duplicates == 'ip' and #keys == 5 + 2 * count
local spread = unpack or table.unpack
local ids = {}
for i = 1, count do
  ids[i] = sub(keys[5 + i], -36)
end
-- Who was heard within this second already needs nothing to be written, and who was heard within this
-- minute has a record that is kept long enough. For a few, asking costs more than it saves.
local minute = int(math.floor(now_ms / 60000) * 60)
local heard = count > 3 and call('ZMSCORE', heartbeat, spread(ids)) or {}
local reply = { 'places', queue.status, queue.message, total, queue.epoch }
local told, seen, new = 5, {}, 0
for i = 1, count do
  local id, position = ids[i], keys[5 + i]
  local rank = call('ZRANK', positions, id)
  local level = sub(levels, i, i)
  if rank then
    local before = heard[i]
    if before ~= now_s then
      -- A field that is new belongs to a record that was lost, or is not ours.
      if call('HSET', position, 'last_heartbeat', now_s) == 1
        and not call('HGET', position, 'status') then
        call('HSET', position, 'queue_id', queue_id, 'session_id', '', 'status', 'waiting',
          'priority', level == '-' and '0' or level,
          'enqueued_at', int(math.floor(joined_ms(id) / 1000)),
          'ip_address', '', 'ip_hash', '', 'user_agent', '', 'metadata', '{}')
        before = nil
      end
      if not before or before < minute or before > now_s then
        call('EXPIRE', position, ttl)
      end
      seen[new + 1], seen[new + 2] = now_s, id
      new = new + 2
    end
    if by_address and call('GET', keys[5 + count + i]) == id then
      call('EXPIRE', keys[5 + count + i], ttl)
    end
  elseif call('HGET', position, 'status') == 'admitted' then
    call('HSET', position, 'last_heartbeat', now_s)
    call('EXPIRE', position, ttl)
  end
  if not rank or level == '-' then
    tell_place(reply, queue, positions, claims, position, id, rank)
    told = #reply
  else
    told = told + 1
    reply[told] = line.share == 0 and rank + 1 or int(shown(positions, line, rank, total))
  end
end
if new > 0 then
  call('ZADD', heartbeat, spread(seen))
end
return reply
