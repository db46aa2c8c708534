-- desk/set_user_status -- set a user's status: block everywhere at once, or allow again.
-- uses: user_state
--
-- KEYS   1 user    hash  the user, as the schema has it
--        2 record  hash  status that outlives the user's hash
-- ARGV   1 now_ms  2 status  3 reason  4 until_ms
-- REPLY  {'set', previous status, status}
--
-- An empty status lifts a block: the status before it comes back. A user who is not blocked keeps theirs.
--
-- Keeps: a block is recorded without a TTL, whether there is a session or not; a user without a hash
-- gets none. Made again it changes nothing.
local now_ms = tonumber(now_ms)
local previous, _, _, exists = user_state()
if status == 'blocked' then
  local before = previous
  if before == 'blocked' then before = redis.call('HGET', record, 'previous') or 'login' end
  redis.call('HSET', record, 'status', 'blocked', 'reason', reason, 'until_ms', until_ms,
    'source', 'desk', 'login_time', '', 'previous', before, 'changed_ms', string.format('%.0f', now_ms))
  if exists then redis.call('HSET', user, 'status', 'blocked', 'active', 'false') end
  return {'set', previous, 'blocked'}
end
local allowed = status
if status == '' then
  if previous ~= 'blocked' then return {'set', previous, previous} end
  allowed = redis.call('HGET', record, 'previous') == 'anonymous' and 'anonymous' or 'login'
end
redis.call('DEL', record)
if exists then redis.call('HSET', user, 'status', allowed, 'active', 'true') end
return {'set', previous, allowed}
