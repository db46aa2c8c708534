-- user_state() -- tells a user's status out of the hash that anyone may write and the record that outlives it.
-- reads: user, record, now_ms
--
-- Returns the status, the reason and end of a block, and whether there is a hash. Writes only to make
-- both agree: a block found in the hash is recorded, so that it outlives the hash, and a recorded one
-- is put back into a hash that a login wrote over. While it lasts the hash says so in both fields; a
-- block that came from the hash ends when one of them is changed without a new login.
local function user_state()
  local now_ms = tonumber(now_ms)
  local hash = redis.call('HMGET', user, 'device_id', 'status', 'active', 'login_time')
  local kept = redis.call('HMGET', record, 'status', 'reason', 'until_ms', 'source', 'login_time', 'previous')
  local exists = (hash[1] or hash[2] or hash[3] or hash[4]) and true or false
  local login_time = hash[4] or ''
  local named = (hash[2] == 'login' or hash[2] == 'anonymous') and hash[2] or nil
  local whole = hash[2] == 'blocked' and hash[3] == 'false'
  if kept[1] == 'blocked' then
    local ended = kept[3] and kept[3] ~= '' and tonumber(kept[3]) <= now_ms
    local lifted = kept[4] == 'hash' and exists and not whole and login_time == kept[5]
    if not ended and not lifted then
      if exists and not whole then
        redis.call('HSET', user, 'status', 'blocked', 'active', 'false')
        -- Whoever logs in while blocked has the status of that login once the block is lifted.
        local status = named or (hash[3] == 'true' and 'login') or kept[6] or 'login'
        redis.call('HSET', record, 'login_time', login_time, 'previous', status)
      end
      return 'blocked', kept[2] or '', kept[3] or '', exists
    end
    local status = named or (kept[6] == 'anonymous' and 'anonymous' or 'login')
    redis.call('DEL', record)
    if exists then redis.call('HSET', user, 'status', status, 'active', 'true') end
    return status, '', '', exists
  end
  if hash[2] == 'blocked' or hash[3] == 'false' then
    redis.call('HSET', record, 'status', 'blocked', 'reason', '', 'until_ms', '', 'source', 'hash',
      'login_time', login_time, 'previous', named or 'login', 'changed_ms', string.format('%.0f', now_ms))
    redis.call('HSET', user, 'status', 'blocked', 'active', 'false')
    return 'blocked', '', '', exists
  end
  -- Programs that follow the schema's example write `active` only.
  return named or (hash[3] == 'true' and 'login' or 'anonymous'), '', '', exists
end
