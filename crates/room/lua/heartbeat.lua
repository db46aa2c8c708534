-- room/heartbeat -- records heartbeats, which hold positions for another while.
-- uses: append_position, enqueued_ms, int, read_queue, shown_position
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 state      hash    counters, clocks
--        3 positions  zset    waiting positions; score = admission order
--        4 admitted   zset    admitted ids; score = start_by_ms
--        5 heartbeat  zset    last heartbeat, Unix seconds
--        6 ..records  hash    the positions; the id is the end of the name. Behind them, if an address
--                             has one position only, the address of each: a string, the id of its position
-- ARGV   1 now_ms  2 queue_id  3 priorities
-- REPLY  as room/status; a position whose priority is known, if it waits, is only its position
--
-- One character of priorities for each position: its priority, or '-' if the caller does not know it.
--
-- Keeps: an ended position stays ended. A position in the line whose record ran out of time during an
-- outage gets its record back; the line is the truth.
local call, sub = redis.call, string.sub
local now_ms = tonumber(now_ms)
local queue = read_queue(meta, state, positions, now_ms)
if not queue then
  return { 'unknown_queue' }
end
local count, ttl, line, total = #priorities, queue.ttl, queue.line, queue.total
local now_s = int(math.floor(now_ms / 1000))
local by_address = queue.duplicates == 'ip' and #KEYS == records + 2 * count
local unpack_all = unpack or table.unpack
local ids = {}
for i = 1, count do
  ids[i] = sub(KEYS[records + i], -36)
end
-- A second heartbeat within the same second writes nothing, and within the same minute the record's
-- TTL is long enough. For up to three positions, reading the scores costs more than it saves.
local minute = int(math.floor(now_ms / 60000) * 60)
local heard = count > 3 and call('ZMSCORE', heartbeat, unpack_all(ids)) or {}
local reply = { 'positions', queue.status, queue.message, total, queue.epoch }
local length, seen, new = 5, {}, 0
for i = 1, count do
  local id, position = ids[i], KEYS[records + i]
  local rank = call('ZRANK', positions, id)
  local priority = sub(priorities, i, i)
  if rank then
    local before = heard[i]
    if before ~= now_s then
      -- A field that is new belongs to a record that was lost, or is not ours.
      if call('HSET', position, 'last_heartbeat', now_s) == 1
        and not call('HGET', position, 'status') then
        call('HSET', position, 'queue_id', queue_id, 'session_id', '', 'status', 'waiting',
          'priority', priority == '-' and '0' or priority,
          'enqueued_at', int(math.floor(enqueued_ms(id) / 1000)),
          'ip_address', '', 'ip_hash', '', 'user_agent', '', 'metadata', '{}')
        before = nil
      end
      if not before or before < minute or before > now_s then
        call('EXPIRE', position, ttl)
      end
      seen[new + 1], seen[new + 2] = now_s, id
      new = new + 2
    end
    if by_address and call('GET', KEYS[records + count + i]) == id then
      call('EXPIRE', KEYS[records + count + i], ttl)
    end
  elseif call('HGET', position, 'status') == 'admitted' then
    call('HSET', position, 'last_heartbeat', now_s)
    call('EXPIRE', position, ttl)
  end
  if not rank or priority == '-' then
    append_position(reply, queue, positions, admitted, position, id, rank)
    length = #reply
  else
    length = length + 1
    reply[length] = line.share == 0 and rank + 1 or int(shown_position(positions, line, rank, total))
  end
end
if new > 0 then
  call('ZADD', heartbeat, unpack_all(seen))
end
return reply
