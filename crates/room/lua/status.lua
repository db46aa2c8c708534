-- room/status -- where a place stands. Reads only: extends nothing, admits nobody.
--
-- KEYS   1 meta       hash  configuration and status of the queue
--        2 state      hash  counters, clocks
--        3 positions  zset  who waits; score = admission order
--        4 claims     zset  admitted ids; score = claim_by_ms
--        5 position   hash  the place
-- ARGV   1 now_ms  2 id
-- REPLY  {status, reason, session_id, level, joined_s, position, total, claim_by_ms, replaced_by,
--         last_heartbeat_s, queue_status, message, epoch, ended_s} | {'unknown'} | {'unknown_queue'}
--
-- Keeps: position >= 1 exactly when the status is 'waiting'; nothing is the front by mistake.
local meta, state, positions, claims, position = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now_ms, id = tonumber(ARGV[1]), ARGV[2]
local read = read_place(meta, state, positions, position, id)
if not read then
  return { 'unknown_queue' }
end
return place_view(read, positions, claims, now_ms, id)
