-- append_event() -- adds an event to the stream of live events and returns its id.
-- reads: events, now_ms, events_most
--
-- Ids follow now_ms and never go back.
local function append_event(...)
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)
  local last_ms, last_seq = 0, 0
  if last[1] then
    local ms, seq = string.match(last[1][1], '^(%d+)%-(%d+)$')
    last_ms, last_seq = tonumber(ms), tonumber(seq)
  end
  local at = tonumber(now_ms)
  local event = string.format('%.0f-0', at)
  if at <= last_ms then event = string.format('%.0f-%.0f', last_ms, last_seq + 1) end
  return redis.call('XADD', events, 'MAXLEN', '~', events_most, event, ...)
end
