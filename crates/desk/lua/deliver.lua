-- desk/deliver -- publish one event of a conversation, with the state it left the conversation in.
-- uses: is_ready, append_event
--
-- KEYS   1 ready     hash    generation of the published state, and the sizes of its keys
--        2 state     hash    the conversation
--        3 active    zset    open conversations; score = ms of the last message
--        4 unread    zset    conversations with unread messages; by urgency
--        5 waiting   zset    conversations that need an agent; by urgency
--        6 due       zset    conversations whose agent must reply; score = deadline in ms
--        7 messages  list    last messages, newest first
--        8 events    stream  live events
--        9 owned     set     conversations of the owner
-- ARGV   1 now_ms  2 id  3 event_no  4 base  5 owner  6 status  7 rank  8 active_ms  9 unread_score  10 queue_score  11 waiting_ms  12 queued_ms  13 team  14 skills  15 last_agent  16 list_change  17 message  18 visitor  19 kind  20 data  21 visitor_data  22 ttl_s  23 events_most
-- REPLY  {'delivered', event id, 'listed' | 'unlisted'} | {'known'} | {'gap', event_no} | {'owner', owner} | {'missing'} | {'stale'}
--
-- Keeps: events of a conversation are published in order, each once. A resolved conversation has no
-- owner. `owner` is who the caller believes it to be; it is compared when the conversation ends.
local now_ms, event_no = tonumber(now_ms), tonumber(event_no)
if not is_ready() then return {'stale'} end
local stored = redis.call('HMGET', state, 'event_no', 'assignee')
if not stored[1] then return {'missing'} end
local applied, assignee = tonumber(stored[1]), stored[2] or ''
if base ~= '' and tonumber(base) > applied then applied = tonumber(base) end
if event_no <= applied then return {'known'} end
if event_no > applied + 1 then return {'gap', string.format('%.0f', applied)} end
local is_resolved = status == 'resolved'
if is_resolved and assignee ~= '' and assignee ~= owner then return {'owner', assignee} end

redis.call('HSET', state, 'event_no', string.format('%.0f', event_no), 'status', status, 'rank', rank,
  'waiting_ms', waiting_ms, 'queued_ms', queued_ms, 'team', team, 'skills', skills, 'last_agent', last_agent,
  'queue_score', queue_score)
if is_resolved and assignee ~= '' then
  redis.call('HSET', state, 'assignee', '')
  redis.call('SREM', owned, id)
  redis.call('HSET', ready, 'load:' .. assignee, redis.call('SCARD', owned))
  assignee = ''
end
if active_ms == '' then redis.call('ZREM', active, id) else redis.call('ZADD', active, active_ms, id) end
if unread_score == '' then redis.call('ZREM', unread, id) else redis.call('ZADD', unread, unread_score, id) end
if queue_score ~= '' and assignee == '' then
  redis.call('ZADD', waiting, queue_score, id)
else
  redis.call('ZREM', waiting, id)
end
if waiting_ms == '' or assignee == '' then redis.call('ZREM', due, id) end
redis.call('HSET', ready, 'active', redis.call('ZCARD', active), 'unread', redis.call('ZCARD', unread))
redis.call('EXPIRE', active, ttl_s)
redis.call('EXPIRE', unread, ttl_s)
if is_resolved then redis.call('EXPIRE', state, ttl_s) else redis.call('PERSIST', state) end

local listed = 'listed'
if list_change == 'first' or (list_change == 'add' and redis.call('EXISTS', messages) == 1) then
  redis.call('LPUSH', messages, message)
  redis.call('LTRIM', messages, 0, 99)
  redis.call('EXPIRE', messages, ttl_s)
elseif list_change ~= '' then
  redis.call('DEL', messages)
  listed = 'unlisted'
end
local event = append_event('kind', kind, 'conversation', id, 'visitor', visitor, 'data', data,
  'visitor_data', visitor_data)
return {'delivered', event, listed}
