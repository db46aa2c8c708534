-- close_session(k, session, session_id, position, e, now_ms): removes a session from every index
-- and marks it and its position as ended; e = {session, position, reason, event, detail}; the
-- detail, if there is one, is what an operator calls the reason.
-- uses: emit, finish, int
local function close_session(k, session, session_id, position, e, now_ms)
  redis.call('SREM', k.active, session_id)
  redis.call('ZREM', k.deadlines, session_id)
  local id = redis.call('HGET', session, 'position_id') or ''
  if redis.call('EXISTS', session) == 1 then
    redis.call('HSET', session, 'status', e.session, 'reason', e.reason,
      'ended_at', int(math.floor(now_ms / 1000)))
    redis.call('EXPIRE', session, k.position_ttl)
  end
  finish(position, e.position, e.reason, now_ms, k.position_ttl)
  local detail = (e.detail or '') ~= '' and ',"detail":"' .. e.detail .. '"' or ''
  emit(k.events, e.event, now_ms, '{"session_id":"' .. session_id .. '","position_id":"' .. id
    .. '","reason":"' .. e.reason .. '"' .. detail .. '}')
end
