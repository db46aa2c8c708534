-- desk/put_conversation -- put the state of a conversation into the store, if it is not there.
--
-- KEYS   1 state  hash  the conversation
-- ARGV   1 event_no  2 assign_no  3 status  4 ttl_s
-- REPLY  {'put'} | {'known'}
--
-- Keeps: a state that is there is newer than the archive's and stays.
if redis.call('EXISTS', state) == 1 then return {'known'} end
redis.call('HSET', state, 'event_no', event_no, 'assign_no', assign_no, 'assignee', '', 'status', status, 'missed', '')
if status == 'resolved' then redis.call('EXPIRE', state, ttl_s) end
return {'put'}
