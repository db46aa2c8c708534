-- emit(events, most, event, now, ids, why) -- adds one event about many jobs to the stream, which
-- keeps about the latest `most`.
local function emit(events, most, event, now, ids, why)
  if tonumber(most) > 0 and #ids > 0 then
    redis.call('XADD', events, 'MAXLEN', '~', most, '*', 'event', event, 'at', now,
      'ids', table.concat(ids, '\n'), 'why', why or '')
  end
end
