-- desk/announce -- publish an event that leaves no trace: typing, presence, the length of the queue.
-- uses: append_event
--
-- KEYS   1 events  stream  live events
-- ARGV   1 now_ms  2 conversation  3 visitor  4 kind  5 data  6 visitor_data  7 events_most
-- REPLY  {'announced', event id}
--
-- Keeps: ids of events only grow.
return {'announced', append_event('kind', kind, 'conversation', conversation, 'visitor', visitor, 'data', data,
  'visitor_data', visitor_data)}
