-- jobs/replay -- puts jobs that have ended in line again, with all their attempts.
-- uses: emit, open_lanes, queue_close, queue_push
--
-- KEYS   1 waiting     list    waiting ids
--        2 index       hash    state of the index
--        3 unindexed   list    waiting ids that have no lane yet
--        4 deadletter  list    dead ids, newest first
--        5 events      stream  what happened
--        6 parents     set     ids that other jobs wait for
--        7 ..keys              those of the lanes; of each job data, status, result and pending, then
--                              status, children and orphans of each of its parents
-- ARGV   1 now_ms  2 wake  3 events_max  4 lanes  5 ..rest
--        the lanes, as `read_lanes` reads them; of each job: id, lane, place, policy, before, after, how
--        many parents, and those
-- REPLY  {'replayed', outcome per job}: 'replayed', 'changed' (its data is not `before` any more),
--        'is STATUS' (it has not ended) or 'after PARENT' (which has not succeeded)
--
-- Keeps: only a job that has ended goes in line, once. One that depends on others waits for those of
-- them that have not ended, and is refused while one has failed that it cannot do without; it comes
-- back with that one.
local queue_state, lane_list, key, at = open_lanes()
local reply, entries, ids = { 'replayed' }, {}, {}
while at < #ARGV do
  local id, place, policy, parents_count = ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], tonumber(ARGV[at + 7])
  local status = redis.call('GET', KEYS[key + 2])
  local outcome, wait, failed = 'replayed', {}, nil
  if status ~= 'dead' and status ~= 'failed' and status ~= 'completed' then
    outcome = 'is ' .. (status or 'unknown')
  elseif redis.call('GET', KEYS[key + 1]) ~= ARGV[at + 5] then
    outcome = 'changed'
  else
    for n = 1, parents_count do
      local other = redis.call('GET', KEYS[key + 2 + 3 * n])
      if other == 'dead' or other == 'failed' then
        if policy == 'fail' then outcome, failed = 'after ' .. ARGV[at + 7 + n], n end
      elseif other and other ~= 'completed' then
        wait[#wait + 1] = n
      end
    end
  end
  if outcome == 'replayed' then
    if status == 'dead' then redis.call('LREM', deadletter, 1, id) end
    redis.call('SET', KEYS[key + 1], ARGV[at + 6])
    redis.call('DEL', KEYS[key + 3])
    for n = 1, parents_count do redis.call('SREM', KEYS[key + 4 + 3 * n], id) end
    if wait[1] then
      redis.call('SET', KEYS[key + 2], 'delayed')
      for n = 1, #wait do
        local parent = ARGV[at + 7 + wait[n]]
        redis.call('SADD', KEYS[key + 4], parent)
        redis.call('SADD', KEYS[key + 3 + 3 * wait[n]], id)
        redis.call('SADD', parents, parent)
      end
    else
      redis.call('SET', KEYS[key + 2], 'waiting')
      local n = #entries
      entries[n + 1], entries[n + 2], entries[n + 3] = id, tonumber(ARGV[at + 2]), place
    end
    ids[#ids + 1] = id
  end
  if failed and status == 'failed' then
    for n = 1, parents_count do
      redis.call(n == failed and 'SADD' or 'SREM', KEYS[key + 4 + 3 * n], id)
    end
  end
  reply[#reply + 1] = outcome
  key, at = key + 4 + 3 * parents_count, at + 7 + parents_count
end
queue_push(queue_state, lane_list, entries, wake)
emit(events, events_max, 'replayed', now_ms, ids)
queue_close(queue_state)
return reply
