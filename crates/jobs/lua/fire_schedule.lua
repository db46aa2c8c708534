-- jobs/fire_schedule -- claims occurrences of one schedule and puts them in line.
-- uses: emit, queue_close, queue_open, queue_push, read_lanes
--
-- KEYS   1 waiting   list    waiting ids
--        2 index     hash    state of the index
--        3 unindexed list    waiting ids that have no lane yet
--        4 cron      zset    ids of schedules; score = next occurrence in ms
--        5 delayed   zset    ids for later
--        6 claims    hash    id -> 'token worker type' of who runs it
--        7 events    stream  what happened
--        8 lock      string  the worker that runs the schedule's own job
--        9 runs      list    the latest five runs, newest first: 'ms id [outcome ended_ms]'
--        10 ..keys           those of the lane, then data and status per occurrence
-- ARGV   1 now_ms  2 wake  3 events_max  4 schedule  5 due_ms  6 next_ms  7 place  8 ended_ms or ''
--        9 ..rest
--        the lane, as `read_lanes` reads it; of each occurrence: id, data
-- REPLY  {'fired', how many} | {'skipped'} (the one before it has not ended) | {'moved'}
--
-- Keeps: whoever moves the score from due_ms to next_ms, and nobody else, puts the occurrences in
-- line, in the same step. The schedule's own job is put in line only if it is not there; how the run
-- before ended, at ended_ms, is noted then, because its state is overwritten.
local now = tonumber(now_ms)
local due = redis.call('ZSCORE', cron, schedule)
if not due or tonumber(due) ~= tonumber(due_ms) then return { 'moved' } end
local queue_state = queue_open(waiting, index, unindexed, now, {})
local lane_list, job_keys, job_args = read_lanes(1, keys, rest)
if next_ms == '' then
  redis.call('ZREM', cron, schedule)
else
  redis.call('ZADD', cron, next_ms, schedule)
end
local entries, ids, skipped = {}, {}, false
for j = 1, (#ARGV - job_args) / 2 do
  local id, data = ARGV[job_args + 2 * j - 1], ARGV[job_args + 2 * j]
  local data_key, status_key = KEYS[job_keys + 2 * j - 1], KEYS[job_keys + 2 * j]
  local status = redis.call('GET', status_key)
  local busy
  if id == schedule then
    -- A job that says it is active, but that nobody holds, was left behind by its worker.
    busy = status == 'waiting'
      or status == 'active' and (redis.call('HEXISTS', claims, id) == 1
        or redis.call('EXISTS', lock) == 1)
      or status == 'delayed' and redis.call('ZSCORE', delayed, id)
  else
    busy = status
  end
  if busy then
    skipped = true
  else
    if id == schedule and (status == 'completed' or status == 'dead' or status == 'failed') then
      local known = redis.call('LRANGE', runs, 0, 4)
      for n = 1, #known do
        if string.match(known[n], '^%d+ %S+$') then
          redis.call('LSET', runs, n - 1, known[n] .. ' ' .. status .. ' ' .. ended_ms)
          break
        end
      end
    end
    redis.call('LPUSH', runs, now_ms .. ' ' .. id)
    redis.call('SET', data_key, data)
    redis.call('SET', status_key, 'waiting')
    local n = #entries
    entries[n + 1], entries[n + 2], entries[n + 3] = id, 1, place
    ids[#ids + 1] = id
  end
end
queue_push(queue_state, lane_list, entries, wake)
emit(events, events_max, 'due', now, ids, schedule)
queue_close(queue_state)
if skipped and #ids == 0 then
  local latest = redis.call('LINDEX', runs, 0)
  -- The run that is in the way stands below; only the latest of those that were skipped is kept.
  if latest and string.match(latest, ' skipped$') then redis.call('LPOP', runs) end
  redis.call('LPUSH', runs, now_ms .. ' ' .. schedule .. ' skipped')
  redis.call('LTRIM', runs, 0, 4)
  emit(events, events_max, 'skipped', now, { schedule })
  return { 'skipped' }
end
redis.call('LTRIM', runs, 0, 4)
return { 'fired', #ids }
