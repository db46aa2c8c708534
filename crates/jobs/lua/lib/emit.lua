-- emit(events, most, event, now, ids, why) -- adds one event about many jobs to the stream, which
-- keeps about the latest `most`. `ids` is a list, or text with an id per line.
local function emit(events, most, event, now, ids, why)
  if type(ids) == 'table' then ids = table.concat(ids, '\n') end
  if most ~= '0' and ids ~= '' then
    redis.call('XADD', events, 'MAXLEN', '~', most, '*', 'event', event, 'at', now,
      'ids', ids, 'why', why or '')
  end
end
