-- emit(events, kind, now_ms, data): appends an event to the queue's capped stream, in the same
-- script as the change it reports.
-- uses: int
local function emit(events, kind, now_ms, data)
  redis.call('XADD', events, 'MAXLEN', '~', '10000', '*',
    'type', kind, 'timestamp', int(now_ms), 'data', data)
end
