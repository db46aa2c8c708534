-- append_position(reply, queue, positions, admitted, position, id, rank): appends to a reply what the
-- holder of a position may know, as status.lua's header lists it; rank is its rank in the line if it waits.
-- uses: int, shown_position
local function append_position(reply, queue, positions, admitted, position, id, rank)
  local n = #reply
  if rank then
    local p = redis.call('HMGET', position, 'priority', 'enqueued_at', 'last_heartbeat', 'ticket')
    reply[n + 1], reply[n + 2] = 'waiting', int(shown_position(positions, queue.line, rank, queue.total))
    reply[n + 3], reply[n + 4] = p[1] or '0', p[2] or ''
    reply[n + 5], reply[n + 6] = p[3] or '', p[4] or ''
    return
  end
  local p = redis.call('HMGET', position, 'status', 'reason', 'session_id', 'priority',
    'enqueued_at', 'replaced_by', 'last_heartbeat', 'ended_at', 'ticket')
  local status, start_by = p[1], ''
  if not status or status == 'admitted' then
    start_by = redis.call('ZSCORE', admitted, id)
    if not status and not start_by then
      reply[n + 1] = 'unknown'
      return
    end
    status = 'admitted'
  end
  reply[n + 1], reply[n + 2], reply[n + 3] = status, p[2] or '', p[3] or ''
  reply[n + 4], reply[n + 5], reply[n + 6] = p[4] or '0', p[5] or '', start_by or ''
  reply[n + 7], reply[n + 8], reply[n + 9] = p[6] or '', p[7] or '', p[8] or ''
  reply[n + 10] = p[9] or ''
end
