-- jobs/restore -- undoes what a v1 worker wrote about a job after its attempt had been ended.
-- uses: queue_close, queue_open, queue_remove
--
-- KEYS   1 waiting     list    waiting ids
--        2 index       hash    state of the index
--        3 unindexed   list    waiting ids that have no lane yet
--        4 claims      hash    id -> 'token worker type' of who runs it
--        5 delayed     zset    ids for later
--        6 deadletter  list    dead ids, newest first
--        7 active      set     ids that run
--        8 overruns    hash    id -> when its v1 worker was overruled
--        9 lock        string  the worker that runs the job
--        10 status     string  its state
--        11 result     string  what it came to
-- ARGV   1 now_ms  2 result_ttl_s  3 id  4 outcome
-- REPLY  {'restored'} | {'fine'} | {'over'} (it has succeeded since, in an attempt that counts)
--
-- v1 writes a result and a status without asking. Where a job really is, it does not touch: whoever
-- holds it, the jobs for later, the dead letters and the line tell which state is the true one.
--
-- Keeps: what the attempts of others have come to stays.
local state = redis.call('GET', status)
local held = redis.call('HEXISTS', claims, id) == 1
local truth = held and 'active' or redis.call('ZSCORE', delayed, id) and 'delayed'
  or redis.call('LPOS', deadletter, id) and 'dead'
if state == 'completed' then
  if not truth and redis.call('LPOS', waiting, id) then truth = 'waiting' end
  if not truth and redis.call('EXISTS', lock) == 1 then truth = 'active' end
  if not truth then
    redis.call('HDEL', overruns, id)
    return { 'over' }
  end
elseif state == 'waiting' and truth then
  -- It has failed there, and was put in line once more.
  local queue_state = queue_open(waiting, index, unindexed, tonumber(now_ms), {})
  queue_remove(queue_state, id, nil, true)
  queue_close(queue_state)
elseif state == 'dead' and truth then
  -- It has failed there for good. The newest of the dead letters is the one of that.
  if truth == 'dead' and not redis.call('LPOS', deadletter, id, 'RANK', '2') then
    if not redis.call('LPOS', waiting, id) then return { 'fine' } end
    truth = 'waiting'
  end
  redis.call('LREM', deadletter, '1', id)
else
  return { 'fine' }
end
redis.call('SET', status, truth)
redis.call('SET', result, outcome, 'EX', result_ttl_s)
if held then redis.call('SADD', active, id) end
return { 'restored' }
