-- jobs/resolve -- tells jobs that waited for an ended one, and lets those go that wait for no more.
-- uses: emit, mark_parents, open_lanes, queue_close, queue_push
--
-- KEYS   1 waiting   list    waiting ids
--        2 index     hash    state of the index
--        3 unindexed list    waiting ids that have no lane yet
--        4 delayed   zset    ids for later; score = due_ms
--        5 parents   set     ids that other jobs wait for
--        6 settled   list    ended ids that other jobs wait for
--        7 finished  list    'ms id' of ended jobs, newest first
--        8 children  set     ids that wait for this parent
--        9 events    stream  what happened
--        10 orphans  set     ids that ended because this parent failed
--        11 ..keys           those of the lanes, then pending, status and result per child
-- ARGV   1 now_ms  2 wake  3 done  4 events_max  5 result_ttl_s  6 parent  7 lanes
--        8 ..rest
--        the lanes, as `read_lanes` reads them; of each child: id, verdict, lane, due_ms,
--        result or ''
-- REPLY  {'resolved', how many children are left}
--
-- Verdicts: 'back' and 'front' put the child in line when it waits for nothing more, 'later' until
-- due_ms; 'fail' ends it at once, because its parent failed; 'gone' forgets it.
--
-- Keeps: a child counts each parent once, however often this is repeated.
local now = tonumber(now_ms)
local queue_state, lane_list, job_keys, job_args = open_lanes()

local entries, failed, ready = {}, {}, {}
for j = 1, (#ARGV - job_args) / 5 do
  local at, key = job_args + 5 * (j - 1), job_keys + 3 * (j - 1)
  local id, verdict = ARGV[at + 1], ARGV[at + 2]
  redis.call('SREM', children, id)
  if redis.call('SREM', KEYS[key + 1], parent) == 1 and redis.call('GET', KEYS[key + 2]) == 'delayed' then
    if verdict == 'fail' then
      redis.call('DEL', KEYS[key + 1])
      redis.call('SET', KEYS[key + 2], 'failed')
      redis.call('SET', KEYS[key + 3], ARGV[at + 5], 'EX', result_ttl_s)
      redis.call('LPUSH', finished, now_ms .. ' ' .. id)
      redis.call('SADD', orphans, id)
      failed[#failed + 1] = id
    elseif verdict ~= 'gone' and redis.call('EXISTS', KEYS[key + 1]) == 0 then
      ready[#ready + 1] = id
      if verdict == 'later' then
        redis.call('ZADD', delayed, ARGV[at + 4], id)
        redis.call('PUBLISH', wake, 'later')
      else
        redis.call('SET', KEYS[key + 2], 'waiting')
        local n = #entries
        entries[n + 1], entries[n + 2], entries[n + 3] = id, tonumber(ARGV[at + 3]), verdict
      end
    end
  end
end
queue_push(queue_state, lane_list, entries, wake)
if #failed > 0 then
  if redis.call('EXISTS', parents) == 1 then mark_parents(parents, settled, failed) end
  redis.call('PUBLISH', done, table.concat(failed, '\n'))
end
local left = redis.call('SCARD', children)
if left == 0 then
  redis.call('SREM', parents, parent)
  redis.call('LREM', settled, 0, parent)
end
emit(events, events_max, 'ready', now, ready, parent)
emit(events, events_max, 'failed', now, failed, parent)
queue_close(queue_state)
return { 'resolved', left }
