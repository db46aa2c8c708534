-- desk/settle_assignments -- forget pending assignments that the archive has, or has refused.
--
-- KEYS   1 pending  hash  assignments that the archive does not have yet
-- ARGV   1 generation  2 ..assignments
-- REPLY  {'settled'}
--
-- Each assignment is two arguments: the id of its conversation, and its number.
--
-- Keeps: an assignment made meanwhile stays pending.
for at = assignments + 1, #ARGV, 2 do
  local id, own = ARGV[at], generation .. '|' .. ARGV[at + 1] .. '|'
  local found = redis.call('HGET', pending, id)
  if found and string.sub(found, 1, #own) == own then redis.call('HDEL', pending, id) end
end
return {'settled'}
