-- jobs/schedule -- stores a recurring job, or changes it.
-- uses: emit
--
-- KEYS   1 cron    zset    ids of schedules; score = next occurrence in ms
--        2 data    string  the job
--        3 status  string  its state
--        4 events  stream  what happened
-- ARGV   1 now_ms  2 events_max  3 id  4 next_ms  5 body
-- REPLY  {'new' or 'changed' or 'same'} | {'taken'}
--
-- Keeps: a schedule has data and a next occurrence. A job that is no schedule is left alone.
local there = redis.call('GET', KEYS[2])
local listed = redis.call('ZSCORE', KEYS[1], ARGV[3])
if there and not listed then return { 'taken' } end
if there == ARGV[5] then return { 'same' } end
redis.call('SET', KEYS[2], ARGV[5])
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[3])
if not there then redis.call('SET', KEYS[3], 'cron') end
emit(KEYS[4], ARGV[2], 'scheduled', ARGV[1], { ARGV[3] })
return { there and 'changed' or 'new' }
