-- jobs/forget -- takes pools out of their registry of which no lane holds jobs.
--
-- KEYS   1 index   hash  how many pools of a worker were seen
--        2 ..keys        of each pool: the lanes that hold jobs, and its registry
-- ARGV   1 ..rest
--        of each pool: its entry, and the field of the index that says it was there, or ''
-- REPLY  {'forgotten', how many}
--
-- Keeps: a pool with a job in a lane stays; the next job brings back what was forgotten.
local forgotten = 0
for j = 1, (#ARGV - rest) / 2 do
  local at, key = rest + 2 * (j - 1), keys + 2 * (j - 1)
  local entry, field = ARGV[at + 1], ARGV[at + 2]
  if redis.call('EXISTS', KEYS[key + 1]) == 0 then
    redis.call('ZREM', KEYS[key + 2], entry)
    if field ~= '' then redis.call('HDEL', index, field) end
    forgotten = forgotten + 1
  end
end
return { 'forgotten', forgotten }
