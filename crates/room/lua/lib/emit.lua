-- emit(events, kind, now_ms, data): one event on the queue's capped stream, in the same step as
-- the change it tells of.
local function emit(events, kind, now_ms, data)
  redis.call('XADD', events, 'MAXLEN', '~', '10000', '*',
    'type', kind, 'timestamp', int(now_ms), 'data', data)
end
