-- jobs/promote -- puts jobs whose time has come in line.
-- uses: emit, open_lanes, queue_close, queue_push
--
-- KEYS   1 waiting     list    waiting ids
--        2 index       hash    state of the index
--        3 unindexed   list    waiting ids that have no lane yet
--        4 delayed     zset    ids for later; score = due_ms
--        5 deadletter  list    dead ids, newest first
--        6 events      stream  what happened
--        7 ..keys              those of the lanes, then status and result per job
-- ARGV   1 now_ms  2 wake  3 events_max  4 result_ttl_s  5 lanes  6 ..rest
--        the lanes, as `read_lanes` reads them; of each job: id, case, lane, result or ''
-- REPLY  {'promoted', how many}
--
-- Cases: 'lane' goes in line; 'gone' has no data and is dropped; 'bad' cannot be understood and goes
-- to the dead letters.
--
-- Keeps: an id that is due leaves delayed once, whoever comes first; one that was put off in the
-- meantime stays.
local now = tonumber(now_ms)
local queue_state, lane_list, job_keys, job_args = open_lanes()

local entries, ids, bad = {}, {}, {}
for j = 1, (#ARGV - job_args) / 4 do
  local at, key = job_args + 4 * (j - 1), job_keys + 2 * (j - 1)
  local id, case = ARGV[at + 1], ARGV[at + 2]
  local due = redis.call('ZSCORE', delayed, id)
  if due and tonumber(due) <= now then
    redis.call('ZREM', delayed, id)
    if case == 'lane' then
      redis.call('SET', KEYS[key + 1], 'waiting')
      local n = #entries
      entries[n + 1], entries[n + 2], entries[n + 3] = id, tonumber(ARGV[at + 3]), 'back'
      ids[#ids + 1] = id
    elseif case == 'bad' then
      redis.call('LPUSH', deadletter, id)
      redis.call('SET', KEYS[key + 1], 'dead')
      redis.call('SET', KEYS[key + 2], ARGV[at + 4], 'EX', result_ttl_s)
      bad[#bad + 1] = id
    end
  end
end
queue_push(queue_state, lane_list, entries, wake)
emit(events, events_max, 'due', now, ids)
emit(events, events_max, 'dead', now, bad, 'malformed')
queue_close(queue_state)
return { 'promoted', #ids + #bad }
