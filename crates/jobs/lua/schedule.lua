-- jobs/schedule -- stores a recurring job, or changes it.
-- uses: emit
--
-- KEYS   1 cron    zset    ids of schedules; score = next occurrence in ms
--        2 data    string  the job
--        3 status  string  its state
--        4 events  stream  what happened
-- ARGV   1 now_ms  2 events_max  3 id  4 next_ms  5 body  6 deleted
--        `deleted` is what a schedule that was deleted has left as data, or nothing
-- REPLY  {'new' or 'changed' or 'same'} | {'taken'}
--
-- Keeps: a schedule has data and a next occurrence. A job that is no schedule is left alone; the last
-- run of one that was deleted becomes a run of the new one.
local stored = redis.call('GET', data)
local listed = redis.call('ZSCORE', cron, id)
if stored and not listed and stored ~= deleted then return { 'taken' } end
if listed and stored == body then return { 'same' } end
redis.call('SET', data, body)
redis.call('ZADD', cron, next_ms, id)
if not stored then redis.call('SET', status, 'cron') end
emit(events, events_max, 'scheduled', now_ms, { id })
return { listed and 'changed' or 'new' }
