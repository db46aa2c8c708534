-- user_state() -- tells a user's status out of the hash that anyone may write and the record that outlives it.
-- reads: user, record, now_ms
--
-- Returns the status, the reason and end of a block, and whether there is a hash. Writes only to make
-- both agree: a block found in the hash is recorded, so that it outlives the hash, and one that is
-- recorded is put back into a hash that a login wrote anew. A block that came from the hash ends when
-- the hash says so without a new login.
local function user_state()
  local now_ms = tonumber(now_ms)
  local hash = redis.call('HMGET', user, 'device_id', 'status', 'active', 'login_time')
  local kept = redis.call('HMGET', record, 'status', 'reason', 'until_ms', 'source', 'login_time', 'previous')
  local exists = (hash[1] or hash[2] or hash[3] or hash[4]) and true or false
  local hash_blocks = hash[2] == 'blocked' or hash[3] == 'false'
  local status = hash[2]
  if status ~= 'login' and status ~= 'anonymous' then
    -- Programs that follow the schema's example write `active` only.
    status = hash[3] == 'true' and 'login' or 'anonymous'
  end
  if kept[1] == 'blocked' then
    local ended = kept[3] and kept[3] ~= '' and tonumber(kept[3]) <= now_ms
    local lifted = kept[4] == 'hash' and exists and not hash_blocks and hash[4] == kept[5]
    if not ended and not lifted then
      if exists and not hash_blocks then
        redis.call('HSET', user, 'status', 'blocked', 'active', 'false')
      end
      return 'blocked', kept[2] or '', kept[3] or '', exists
    end
    redis.call('DEL', record)
    if exists and hash_blocks then
      status = kept[6] == 'anonymous' and 'anonymous' or 'login'
      redis.call('HSET', user, 'status', status, 'active', 'true')
    end
    return status, '', '', exists
  end
  if hash_blocks then
    redis.call('HSET', record, 'status', 'blocked', 'reason', '', 'until_ms', '', 'source', 'hash',
      'login_time', hash[4] or '', 'previous', 'login', 'changed_ms', string.format('%.0f', now_ms))
    return 'blocked', '', '', exists
  end
  return status, '', '', exists
end
