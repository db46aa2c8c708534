-- room/read_positions -- returns the numbers of many positions of one queue. Reads only.
-- uses: int, line_of, shown_position
--
-- KEYS   1 meta       hash  configuration and status of the queue
--        2 state      hash  counters, clocks
--        3 positions  zset  waiting positions; score = admission order
-- ARGV   1 now_ms  2 ..ids
-- REPLY  {'positions', queue_status, message, total, position, …} | {'unknown_queue'}
--
-- Keeps: one position per id, in the order asked; empty for one that does not wait.
local now_ms = tonumber(now_ms)
local m = redis.call('HMGET', meta, 'status', 'priority_policy', 'reserved_share', 'message')
if not m[1] then
  return { 'unknown_queue' }
end
local total = redis.call('ZCARD', positions)
local line = line_of(m[2], m[3], redis.call('HGET', state, 'since_normal'), now_ms)
local reply = { 'positions', m[1], m[4] or '', int(total) }
for i = ids + 1, #ARGV do
  local rank = redis.call('ZRANK', positions, ARGV[i])
  reply[#reply + 1] = rank and int(shown_position(positions, line, rank, total)) or ''
end
return reply
