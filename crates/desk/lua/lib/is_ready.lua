-- is_ready() -- tells whether the published state is whole: marked as such, and of the sizes that were marked.
-- reads: ready, active, unread
--
-- A key that expired, was deleted or was lost with the store makes it false; then the state is rebuilt
-- from the archive before anything uses it.
local function is_ready()
  local known = redis.call('HMGET', ready, 'generation', 'active', 'unread')
  if not known[1] then return false end
  return redis.call('ZCARD', active) == tonumber(known[2] or 0)
    and redis.call('ZCARD', unread) == tonumber(known[3] or 0)
end
