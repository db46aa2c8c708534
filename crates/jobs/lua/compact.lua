-- jobs/compact -- clears tombs out of the waiting list, or has it indexed anew.
--
-- KEYS   1 waiting  list  ids in line
--        2 index    hash  marks of the line
--        3 strays   list  ids in line that have no lane yet
--        4 ..lanes        lanes to be emptied
-- ARGV   1 now_ms  2 anew  3 ..rids
-- REPLY  {'compacted', how many tombs}
--
-- With anew = 1 the given lanes are emptied and everything in line counts as new, so that it gets
-- its lane again. Goes through the whole list once, in the server's own loop: some 50 ns an entry.
--
-- Keeps: what is in line stays in line, in its order.
local s = line_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), {})
local count = redis.call('LREM', KEYS[1], 0, '-')
s.tombs, s.moved = 0, true
s.base = s.seq + 1 - redis.call('LLEN', KEYS[1])
if not s.clean then
  s.at = s.tail ~= '' and redis.call('LPOS', KEYS[1], s.tail, 'RANK', -1) or -1
end
line_close(s)
if ARGV[2] == '1' then
  for n = 4, #KEYS do redis.call('DEL', KEYS[n]) end
  for n = 3, #ARGV do redis.call('HSET', KEYS[2], 'm:' .. ARGV[n], 0) end
  redis.call('DEL', KEYS[3])
  redis.call('HSET', KEYS[2], 'head', '', 'tail', '', 'at', -1)
end
return { 'compacted', count }
