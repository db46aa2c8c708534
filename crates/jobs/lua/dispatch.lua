-- jobs/dispatch -- stores jobs and puts them in line, at once or for later.
--
-- KEYS   1 waiting  list    ids in line
--        2 index    hash    marks of the line, masks of the routes
--        3 strays   list    ids in line that have no lane yet
--        4 delayed  zset    ids for later; score = due_ms
--        5 expiring zset    ids that must start by then; score = ms
--        6 events   stream  what happened
--        7 ..keys           registry and lane per lane, then data and status per job
-- ARGV   1 now_ms  2 wake  3 events_max  4 lanes  5 ..rest
--        of each lane: rid, priority, spec, server; of each job: id, lane, place, due_ms, expires_ms or '', data
-- REPLY  {'dispatched', outcome per job}: 'new', 'same' (this very job is there: the call was
--        repeated) or 'taken' (another job has this id; nothing was changed)
--
-- Keeps: a job that is answered for is stored, has a status and is in exactly one of waiting (front
-- or back as v1 would push it) and delayed. Repeating does nothing.
local now, wake, lanes_count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[4])
local lanes, want = {}, {}
for n = 1, lanes_count do
  local at = 4 + 4 * (n - 1)
  lanes[n] = { registry = KEYS[6 + 2 * n - 1], key = KEYS[6 + 2 * n], rid = ARGV[at + 1],
    priority = tonumber(ARGV[at + 2]), spec = ARGV[at + 3], server = ARGV[at + 4] }
  want[n] = 'm:' .. lanes[n].rid
end
local s = line_open(KEYS[1], KEYS[2], KEYS[3], now, want)
for n = 1, lanes_count do lanes[n].mask = s.more[n] end

local job_keys, job_args = 6 + 2 * lanes_count, 4 + 4 * lanes_count
local jobs = (#ARGV - job_args) / 6
-- Are all of them new, as they nearly always are? Then one call stores them all.
local data_keys, seen, fresh = {}, {}, true
for j = 1, jobs do
  local id = ARGV[job_args + 6 * j - 5]
  fresh = fresh and not seen[id]
  data_keys[j], seen[id] = KEYS[job_keys + 2 * j - 1], true
end
fresh = fresh and redis.call('EXISTS', spread(data_keys)) == 0

local reply, entries, later, expiring, store, ids = { 'dispatched' }, {}, {}, {}, {}, {}
local count, stored = 0, 0
for j = 1, jobs do
  local at = job_args + 6 * (j - 1)
  local id, place, data = ARGV[at + 1], ARGV[at + 3], ARGV[at + 6]
  local data_key = data_keys[j]
  if fresh or redis.call('SET', data_key, data, 'NX') then
    reply[j + 1] = 'new'
    count = count + 1
    ids[count] = id
    if fresh then
      store[stored + 1], store[stored + 2] = data_key, data
      stored = stored + 2
    end
    store[stored + 1] = KEYS[job_keys + 2 * j]
    store[stored + 2] = place == 'later' and 'delayed' or 'waiting'
    stored = stored + 2
    if place == 'later' then
      later[#later + 1] = ARGV[at + 4]
      later[#later + 1] = id
    else
      entries[#entries + 1] = { id, tonumber(ARGV[at + 2]), place }
    end
    if ARGV[at + 5] ~= '' then
      expiring[#expiring + 1] = ARGV[at + 5]
      expiring[#expiring + 1] = id
    end
  elseif redis.call('GET', data_key) == data then
    reply[j + 1] = 'same'
  else
    reply[j + 1] = 'taken'
  end
end
if count > 0 then
  redis.call('MSET', spread(store))
  if #later > 0 then
    redis.call('ZADD', KEYS[4], spread(later))
    redis.call('PUBLISH', wake, 'later')
  end
  if #expiring > 0 then redis.call('ZADD', KEYS[5], spread(expiring)) end
  line_push(s, lanes, entries, wake)
  emit(KEYS[6], ARGV[3], 'dispatched', now, ids)
end
line_close(s)
return reply
