-- jobs/dispatch -- stores jobs and puts them in line, at once or for later.
-- uses: chunked, emit, open_lanes, queue_close, queue_push
--
-- KEYS   1 waiting  list    waiting ids
--        2 index    hash    state of the index
--        3 unindexed list    waiting ids that have no lane yet
--        4 delayed  zset    ids for later; score = due_ms
--        5 expiring zset    ids that must start by then; score = ms
--        6 events   stream  what happened
--        7 ..keys           those of the lanes, then data and status per job
-- ARGV   1 now_ms  2 wake  3 events_max  4 lanes  5 ..rest
--        the lanes, as `read_lanes` reads them; of each job: id, lane, place, due_ms, expires_ms or '', data
-- REPLY  {'dispatched', outcome per job}: 'new', 'same' (this very job is there: the call was
--        repeated) or 'taken' (another job has this id; nothing was changed)
--
-- Keeps: a job that is answered for is stored, has a status and is in exactly one of waiting (front
-- or back as v1 would push it) and delayed. Repeating does nothing.
local call = redis.call
local queue_state, lane_list, job_keys, job_args = open_lanes()

local jobs = (#ARGV - job_args) / 6
-- Are all of them new, as they nearly always are? Then one call stores them all.
local fresh = false
if jobs == 1 then
  fresh = call('EXISTS', KEYS[job_keys + 1]) == 0
else
  local data_keys, seen = {}, {}
  fresh = true
  for j = 1, jobs do
    local id = ARGV[job_args + 6 * j - 5]
    fresh = fresh and not seen[id]
    data_keys[j], seen[id] = KEYS[job_keys + 2 * j - 1], true
  end
  fresh = fresh and chunked('EXISTS', nil, data_keys) == 0
end

-- A table that begins with the size it has for one job need not grow for it.
local reply, store, ids = { 'dispatched' }, { 0, 0, 0, 0 }, { 0 }
local count, stored, entered = 0, 0, 0
local entries, later, limits = nil, nil, nil
for j = 1, jobs do
  local at, key = job_args + 6 * (j - 1), job_keys + 2 * j - 1
  local id, place, data, data_key = ARGV[at + 1], ARGV[at + 3], ARGV[at + 6], KEYS[key]
  if fresh or call('SET', data_key, data, 'NX') then
    reply[j + 1] = 'new'
    count = count + 1
    ids[count] = id
    if fresh then
      store[stored + 1], store[stored + 2] = data_key, data
      stored = stored + 2
    end
    store[stored + 1] = KEYS[key + 1]
    store[stored + 2] = place == 'later' and 'delayed' or 'waiting'
    stored = stored + 2
    if place == 'later' then
      later = later or {}
      later[#later + 1] = ARGV[at + 4]
      later[#later + 1] = id
    else
      local lane = tonumber(ARGV[at + 2])
      if entries then
        entries[entered + 1], entries[entered + 2], entries[entered + 3] = id, lane, place
      else
        entries = { id, lane, place }
      end
      entered = entered + 3
    end
    if ARGV[at + 5] ~= '' then
      limits = limits or {}
      limits[#limits + 1] = ARGV[at + 5]
      limits[#limits + 1] = id
    end
  elseif call('GET', data_key) == data then
    reply[j + 1] = 'same'
  else
    reply[j + 1] = 'taken'
  end
end
if count > 0 then
  chunked('MSET', nil, store, 1, stored)
  if later then
    chunked('ZADD', delayed, later)
    call('PUBLISH', wake, 'later')
  end
  if limits then chunked('ZADD', expiring, limits) end
  if entries then queue_push(queue_state, lane_list, entries, wake) end
  emit(events, events_max, 'dispatched', now_ms, count == 1 and ids[1] or ids)
end
queue_close(queue_state)
return reply
