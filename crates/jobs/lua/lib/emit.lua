-- emit(events, limit, event, now, ids, why) -- adds one event about many jobs to the stream, which
-- keeps about the latest `limit`. `ids` is a list, or text with an id per line.
local function emit(events, limit, event, now, ids, why)
  if type(ids) == 'table' then ids = table.concat(ids, '\n') end
  if limit ~= '0' and ids ~= '' then
    redis.call('XADD', events, 'MAXLEN', '~', limit, '*', 'event', event, 'at', now,
      'ids', ids, 'why', why or '')
  end
end
