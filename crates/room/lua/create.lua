-- room/create -- creates a queue that does not exist yet.
-- uses: emit, int, put_bucket
--
-- KEYS   1 meta         hash    configuration and status of the queue
--        2 state        hash    counters, clocks
--        3 tokens       string  admissions the rate allows
--        4 last_update  string  Unix seconds at which the tokens were counted
--        5 events       stream  events of the queue
-- ARGV   1 now_ms  2 burst  3 request_id  4 ..fields  (name, value of each)
-- REPLY  {'created'} | {'exists'}
--
-- Keeps: an existing queue is not touched; the same request repeated answers the same.
local now_ms = tonumber(now_ms)
if redis.call('EXISTS', meta) == 1 then
  if redis.call('HGET', meta, 'created_by') == request_id then
    return { 'created' }
  end
  return { 'exists' }
end
for i = fields + 1, #ARGV, 2 do
  redis.call('HSET', meta, ARGV[i], ARGV[i + 1])
end
redis.call('HSET', meta, 'created_by', request_id)
redis.call('HSET', state, 'beat_ms', int(now_ms), 'last_ticket', '0', 'epoch', '1')
put_bucket(tokens, last_update, state, tonumber(burst), 0, now_ms)
emit(events, 'queue.created', now_ms, '{}')
return { 'created' }
