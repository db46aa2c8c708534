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
for j = 1, #ARGV / 2 do
  local entry, field, key = ARGV[2 * j - 1], ARGV[2 * j], 2 * j
  if redis.call('EXISTS', KEYS[key]) == 0 then
    redis.call('ZREM', KEYS[key + 1], entry)
    if field ~= '' then redis.call('HDEL', KEYS[1], field) end
    forgotten = forgotten + 1
  end
end
return { 'forgotten', forgotten }
