-- place_view(…): what the holder of a place may know, as status.lua's header lists it.
local function place_view(meta, state, positions, claims, position, now_ms, id)
  local m = redis.call('HMGET', meta, 'status', 'priority_policy', 'reserved_share', 'message')
  if not m[1] then
    return { 'unknown_queue' }
  end
  local p = redis.call('HMGET', position, 'status', 'reason', 'session_id', 'priority',
    'enqueued_at', 'replaced_by', 'last_heartbeat')
  local s = redis.call('HMGET', state, 'since_normal', 'epoch')
  local rank = redis.call('ZRANK', positions, id)
  local total = redis.call('ZCARD', positions)
  local place, claim_by, status = '', '', p[1]
  if rank then
    status = 'waiting'
    place = int(shown(positions, line_of(m[2], m[3], s[1], now_ms), rank, total))
  elseif not status then
    claim_by = redis.call('ZSCORE', claims, id)
    if not claim_by then
      return { 'unknown' }
    end
    status = 'admitted'
  elseif status == 'admitted' then
    claim_by = redis.call('ZSCORE', claims, id) or ''
  end
  return { status, p[2] or '', p[3] or '', p[4] or '0', p[5] or '', place, int(total), claim_by,
    p[6] or '', p[7] or '', m[1], m[4] or '', s[2] or '0' }
end
