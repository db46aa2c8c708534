-- jobs/compact -- clears tombstones out of the waiting list, or has it indexed anew.
-- uses: queue_close, queue_open
--
-- KEYS   1 waiting  list  waiting ids
--        2 index    hash  state of the index
--        3 unindexed list  waiting ids that have no lane yet
-- ARGV   1 now_ms  2 anew
-- REPLY  {'compacted', how many tombstones}
--
-- With anew = 1 everything in line counts as new, so that it gets its lane again; the lanes were
-- cleared before. Goes through the whole list once, in the server's own loop: some 50 ns an entry.
--
-- Keeps: what is in line stays in line, in its order.
local queue_state = queue_open(waiting, index, unindexed, tonumber(now_ms), {})
local count = redis.call('LREM', waiting, 0, '-')
queue_state.tombstones, queue_state.moved = 0, true
queue_state.base = queue_state.seq + 1 - redis.call('LLEN', waiting)
if not queue_state.clean then
  queue_state.at = queue_state.tail ~= '' and redis.call('LPOS', waiting, queue_state.tail, 'RANK', -1) or -1
end
queue_close(queue_state)
if anew == '1' then
  redis.call('DEL', unindexed)
  redis.call('HSET', index, 'head', '', 'tail', '', 'at', -1)
end
return { 'compacted', count }
