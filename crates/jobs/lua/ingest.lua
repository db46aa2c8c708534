-- jobs/ingest -- gives jobs that a v1 producer put in line their place in a lane.
-- uses: emit, list_lane, open_lanes, queue_close, queue_push, queue_remove
--
-- KEYS   1 waiting     list    waiting ids
--        2 index       hash    state of the index
--        3 unindexed   list    waiting ids that have no lane yet
--        4 limbo       zset    waiting ids without data; score = when they are given up
--        5 deadletter  list    dead ids, newest first
--        6 events      stream  what happened
--        7 ..keys              those of the lanes, then status and result per job
-- ARGV   1 now_ms  2 wake  3 events_max  4 limbo_until_ms  5 result_ttl_s  6 lanes
--        7 ..rest
--        the lanes, as `read_lanes` reads them; of each job: id, case, lane, result or ''
-- REPLY  {'ingested', how many}
--
-- Cases: 'lane' has a lane; 'limbo' has no data yet; 'bad' cannot be understood and goes to the
-- dead letters with its reason as result.
--
-- Keeps: an id leaves unindexed once, whoever of several clients comes first.
local now = tonumber(now_ms)
local queue_state, lane_list, job_keys, job_args = open_lanes()

-- A lane that holds jobs is listed in all its pools; one that is not is listed again.
local function lost_entry(lane)
  for m = 1, lane.pools do
    if not redis.call('ZSCORE', KEYS[lane.keys + 3 * m - 2], lane.member) then
      list_lane(index, lane, redis.call('LINDEX', lane.key, '0'), wake)
      return
    end
  end
end

local entries, bad, done = {}, {}, 0
for j = 1, (#ARGV - job_args) / 4 do
  local at, key = job_args + 4 * (j - 1), job_keys + 2 * (j - 1)
  local id, case, n = ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  if redis.call('LREM', unindexed, 1, id) == 1 then
    done = done + 1
    if case == 'lane' then
      -- What was looked at in doubt is near the front of its lane if it has its place there.
      if not redis.call('LPOS', lane_list[n].key, id, 'MAXLEN', 400) then
        local last = #entries
        entries[last + 1], entries[last + 2], entries[last + 3] = id, n, 'listed'
      else
        lost_entry(lane_list[n])
      end
    elseif case == 'limbo' then
      redis.call('ZADD', limbo, 'NX', limbo_until_ms, id)
    elseif queue_remove(queue_state, id, nil, true) then
      redis.call('LPUSH', deadletter, id)
      redis.call('SET', KEYS[key + 1], 'dead')
      redis.call('SET', KEYS[key + 2], ARGV[at + 4], 'EX', result_ttl_s)
      bad[#bad + 1] = id
    end
  end
end
queue_push(queue_state, lane_list, entries, wake)
emit(events, events_max, 'dead', now, bad, 'malformed')
queue_close(queue_state)
return { 'ingested', done }
