-- read_place(meta, state, positions, position, id): all that is stored of a place and of its queue,
-- read once: the queue's settings m, the record p, the queue's state s, the rank in the line if it
-- waits, and how many wait. Nothing if there is no such queue.
local function read_place(meta, state, positions, position, id)
  local m = redis.call('HMGET', meta, 'status', 'priority_policy', 'reserved_share', 'message',
    'position_ttl', 'duplicates')
  if not m[1] then
    return nil
  end
  return {
    m = m,
    p = redis.call('HMGET', position, 'status', 'reason', 'session_id', 'priority', 'enqueued_at',
      'replaced_by', 'last_heartbeat', 'ended_at'),
    s = redis.call('HMGET', state, 'since_normal', 'epoch'),
    rank = redis.call('ZRANK', positions, id),
    total = redis.call('ZCARD', positions),
  }
end
