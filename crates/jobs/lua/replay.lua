-- jobs/replay -- puts a job that has ended in line again, with all its attempts.
--
-- KEYS   1 waiting     list    ids in line
--        2 index       hash    marks of the line, masks of the routes
--        3 strays      list    ids in line that have no lane yet
--        4 deadletter  list    dead ids, newest first
--        5 events      stream  what happened
--        6 registry    hash    route name -> route
--        7 lane        list    number and id of the jobs in line of this route and priority
--        8 data        string  the job
--        9 status      string  its state
--        10 result     string  what it came to
-- ARGV   1 now_ms  2 wake  3 events_max  4 id  5 rid  6 priority  7 spec  8 server  9 place
--        10 before  11 after
-- REPLY  {'replayed'} | {'changed'} (its data is not `before` any more) | {'wrong', status}
--
-- Keeps: only a job that has ended goes in line, once.
local id, status = ARGV[4], redis.call('GET', KEYS[9])
if status ~= 'dead' and status ~= 'failed' and status ~= 'completed' then
  return { 'wrong', status or 'unknown' }
end
if redis.call('GET', KEYS[8]) ~= ARGV[10] then return { 'changed' } end
local s = line_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), { 'm:' .. ARGV[5] })
if status == 'dead' then redis.call('LREM', KEYS[4], 1, id) end
redis.call('SET', KEYS[8], ARGV[11])
redis.call('SET', KEYS[9], 'waiting')
redis.call('DEL', KEYS[10])
local lane = { registry = KEYS[6], key = KEYS[7], rid = ARGV[5], priority = tonumber(ARGV[6]),
  spec = ARGV[7], server = ARGV[8], mask = s.more[1] }
line_push(s, { lane }, { id, 1, ARGV[9] }, ARGV[2])
emit(KEYS[5], ARGV[3], 'replayed', ARGV[1], { id })
line_close(s)
return { 'replayed' }
