-- jobs/remove -- forgets jobs that have ended.
--
-- KEYS   1 finished    list    'ms id' of ended jobs, newest first
--        2 deadletter  list    dead ids, newest first
--        3 cron        zset    ids of schedules
--        4 ..keys              status, data, result, progress, log, history, orphans and attempt per
--                              job
-- ARGV   1 from  2 ..rest
--        of each job: id, entry
-- REPLY  {'removed', outcome per job}: 'removed' or 'kept'
--
-- From 'finished': the entry must still be in the list. From 'deadletter': so must the id. From
-- 'anywhere': it must have ended; its entry in the list of ended jobs goes in its turn.
--
-- Keeps: a job that is in line, runs, or is a schedule loses only its entry.
local reply = { 'removed' }
for j = 1, (#ARGV - rest) / 2 do
  local at, key = rest + 2 * (j - 1), keys + 8 * (j - 1)
  local id, entry = ARGV[at + 1], ARGV[at + 2]
  local status = redis.call('GET', KEYS[key + 1])
  local listed
  if from == 'finished' then
    listed = redis.call('LREM', finished, -1, entry) == 1
      and (not status or status == 'completed' or status == 'failed')
  elseif from == 'anywhere' then
    listed = status == 'completed' or status == 'failed'
      or status == 'dead' and redis.call('LREM', deadletter, 1, id) == 1
  else
    listed = redis.call('LREM', deadletter, -1, id) == 1 and (not status or status == 'dead')
  end
  if listed and not redis.call('ZSCORE', cron, id) then
    redis.call('DEL', KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4], KEYS[key + 5],
      KEYS[key + 6], KEYS[key + 7], KEYS[key + 8])
    reply[#reply + 1] = 'removed'
  else
    reply[#reply + 1] = 'kept'
  end
end
return reply
