-- desk/set_block -- block an identity at a policy for a time, or lift a block, and tell all instances.
--
-- KEYS   1 blocks   zset    policy and identity with # between; score = end of the block, in ms
--        2 version  string  number of the last change
-- ARGV   1 now_ms  2 member  3 until_ms  4 most
-- REPLY  {'blocked'} | {'lifted'} | {'unknown'}
--
-- Keeps: at most `most` blocks; those that have ended go, then those that end first. An end of 0 lifts.
-- A block that lasts longer already stays as it is.
redis.call('ZREMRANGEBYSCORE', blocks, '-inf', now_ms)
if tonumber(until_ms) == 0 then
  if redis.call('ZREM', blocks, member) == 0 then return {'unknown'} end
  redis.call('INCR', version)
  return {'lifted'}
end
redis.call('ZADD', blocks, 'GT', until_ms, member)
local over = redis.call('ZCARD', blocks) - tonumber(most)
if over > 0 then redis.call('ZREMRANGEBYRANK', blocks, 0, over - 1) end
redis.call('INCR', version)
return {'blocked'}
