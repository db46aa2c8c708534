-- store/events_append -- add an event to a capped stream.
--
-- KEYS   1 stream  stream  the events, oldest dropped first
-- ARGV   1 now_ms  2 most  3 request_id  4 ..fields
-- REPLY  {'added', id} | {'known', id}
--
-- Keeps: ids follow now_ms and never go back. An event whose request_id is among the last 32 is not
-- added again; it is kept in the field 'rid', which is absent when the request has no id.
local now_ms = tonumber(now_ms)
local recent = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', request_id == '' and 1 or 32)
local last_ms, last_seq = 0, 0
if recent[1] then
  local ms, seq = string.match(recent[1][1], '^(%d+)%-(%d+)$')
  last_ms, last_seq = tonumber(ms), tonumber(seq)
end
if request_id ~= '' then
  for _, event in ipairs(recent) do
    local pairs_of = event[2]
    for at = 1, #pairs_of, 2 do
      if pairs_of[at] == 'rid' and pairs_of[at + 1] == request_id then
        return {'known', event[1]}
      end
    end
  end
end

local id
if now_ms > last_ms then
  id = string.format('%.0f-0', now_ms)
else
  id = string.format('%.0f-%.0f', last_ms, last_seq + 1)
end
local call = {'XADD', stream, 'MAXLEN', '~', most, id}
for at = fields + 1, #ARGV do call[#call + 1] = ARGV[at] end
if request_id ~= '' then
  call[#call + 1] = 'rid'
  call[#call + 1] = request_id
end
return {'added', redis.call((unpack or table.unpack)(call))}
