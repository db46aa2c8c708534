-- desk/fill_messages -- put the last messages of a conversation back into its list, unless it changed meanwhile.
--
-- KEYS   1 state     hash  the conversation
--        2 messages  list  last messages, newest first
-- ARGV   1 event_no  2 ttl_s  3 ..items
-- REPLY  {'filled'} | {'moved'}
--
-- Keeps: the list is the archive's as of event_no, or is not there.
if (redis.call('HGET', state, 'event_no') or '') ~= event_no then return {'moved'} end
redis.call('DEL', messages)
for at = items + 1, #ARGV do redis.call('RPUSH', messages, ARGV[at]) end
if #ARGV > items then redis.call('EXPIRE', messages, ttl_s) end
return {'filled'}
