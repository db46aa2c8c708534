-- room/status -- where places stand. Reads only: extends nothing, admits nobody.
--
-- KEYS   1 meta       hash  configuration and status of the queue
--        2 state      hash  counters, clocks
--        3 positions  zset  who waits; score = admission order
--        4 claims     zset  admitted ids; score = claim_by_ms
--        5 ..places   hash  the places; the id is the end of the name
-- ARGV   1 now_ms
-- REPLY  {'places', queue_status, message, total, epoch, …} | {'unknown_queue'}; then for each place
--        'waiting', position, level, joined_s, last_heartbeat_s, ticket
--        | status, reason, session_id, level, joined_s, claim_by_ms, replaced_by,
--          last_heartbeat_s, ended_s, ticket
--        | 'unknown'
--
-- Keeps: 'waiting' and a position >= 1 are told exactly of those in the line; nothing is the front
-- by mistake.
local call, sub, keys = redis.call, string.sub, KEYS
local meta, state, positions, claims = keys[1], keys[2], keys[3], keys[4]
local queue = read_queue(meta, state, positions, tonumber(ARGV[1]))
if not queue then
  return { 'unknown_queue' }
end
local reply = { 'places', queue.status, queue.message, queue.total, queue.epoch }
for i = 5, #keys do
  local id = sub(keys[i], -36)
  tell_place(reply, queue, positions, claims, keys[i], id, call('ZRANK', positions, id))
end
return reply
