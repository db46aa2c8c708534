-- room/status -- returns the status of positions. Reads only: extends nothing, admits nobody.
-- uses: append_position, read_queue
--
-- KEYS   1 meta       hash  configuration and status of the queue
--        2 state      hash  counters, clocks
--        3 positions  zset  waiting positions; score = admission order
--        4 admitted   zset  admitted ids; score = start_by_ms
--        5 ..records  hash  the positions; the id is the end of the name
-- ARGV   1 now_ms
-- REPLY  {'positions', queue_status, message, total, epoch, …} | {'unknown_queue'}; then for each position
--        'waiting', position, priority, enqueued_s, last_heartbeat_s, ticket
--        | status, reason, session_id, priority, enqueued_s, start_by_ms, replaced_by,
--          last_heartbeat_s, ended_s, ticket
--        | 'unknown'
--
-- Keeps: 'waiting' and a position >= 1 are returned exactly for those in line; an error never reads
-- as the front.
local call, sub = redis.call, string.sub
local queue = read_queue(meta, state, positions, tonumber(now_ms))
if not queue then
  return { 'unknown_queue' }
end
local reply = { 'positions', queue.status, queue.message, queue.total, queue.epoch }
for i = records + 1, #KEYS do
  local id = sub(KEYS[i], -36)
  append_position(reply, queue, positions, admitted, KEYS[i], id, call('ZRANK', positions, id))
end
return reply
