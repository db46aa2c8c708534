-- jobs/restore -- undoes what a v1 worker wrote about a job after its attempt had been ended.
-- uses: unpack_all, chunked, queue_open, queue_remove, queue_close
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
local id, status = ARGV[3], redis.call('GET', KEYS[10])
local held = redis.call('HEXISTS', KEYS[4], id) == 1
local truth = held and 'active' or redis.call('ZSCORE', KEYS[5], id) and 'delayed'
  or redis.call('LPOS', KEYS[6], id) and 'dead'
if status == 'completed' then
  if not truth and redis.call('LPOS', KEYS[1], id) then truth = 'waiting' end
  if not truth and redis.call('EXISTS', KEYS[9]) == 1 then truth = 'active' end
  if not truth then
    redis.call('HDEL', KEYS[8], id)
    return { 'over' }
  end
elseif status == 'waiting' and truth then
  -- It has failed there, and was put in line once more.
  local queue_state = queue_open(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), {})
  queue_remove(queue_state, id, nil, true)
  queue_close(queue_state)
elseif status == 'dead' and truth then
  -- It has failed there for good. The newest of the dead letters is the one of that.
  if truth == 'dead' and not redis.call('LPOS', KEYS[6], id, 'RANK', '2') then
    if not redis.call('LPOS', KEYS[1], id) then return { 'fine' } end
    truth = 'waiting'
  end
  redis.call('LREM', KEYS[6], '1', id)
else
  return { 'fine' }
end
redis.call('SET', KEYS[10], truth)
redis.call('SET', KEYS[11], ARGV[4], 'EX', ARGV[2])
if held then redis.call('SADD', KEYS[7], id) end
return { 'restored' }
