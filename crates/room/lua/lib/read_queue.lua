-- read_queue(meta, state, positions, now_ms): reads what all positions of a queue share: status,
-- message, epoch, order, number of waiting positions, TTL of records and the rule for duplicates.
-- Returns nil if the queue does not exist.
-- uses: line_of
local function read_queue(meta, state, positions, now_ms)
  local m = redis.call('HMGET', meta, 'status', 'message', 'priority_policy', 'reserved_share',
    'position_ttl', 'duplicates')
  if not m[1] then
    return nil
  end
  local since = m[3] == 'strict' and redis.call('HGET', state, 'since_normal')
  return {
    status = m[1],
    message = m[2] or '',
    epoch = redis.call('HGET', state, 'epoch') or '0',
    line = line_of(m[3], m[4], since, now_ms),
    total = redis.call('ZCARD', positions),
    ttl = m[5],
    duplicates = m[6],
  }
end
