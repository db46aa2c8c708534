-- room/compact -- removes tombstones (ids that no longer wait) from a lane, a piece at a time.
-- uses: int
--
-- KEYS   1 lane       list  waiting ids of one priority, with tombstones among them
--        2 spare      list  the part already gone through
--        3 positions  zset  waiting positions; score = admission order
-- ARGV   1 most
-- REPLY  {'more'} | {'done'}
--
-- Keeps: order. Until the last piece the lane is spare followed by lane; then the spare takes its
-- name. Visitors who enqueue meanwhile are behind.
local most = tonumber(most)
local part = redis.call('LRANGE', lane, '0', int(most - 1))
for _, id in ipairs(part) do
  if redis.call('ZSCORE', positions, id) then
    redis.call('RPUSH', spare, id)
  end
end
redis.call('LTRIM', lane, int(most), '-1')
if redis.call('LLEN', lane) > 0 then
  return { 'more' }
end
if redis.call('EXISTS', spare) == 1 then
  redis.call('RENAME', spare, lane)
end
return { 'done' }
