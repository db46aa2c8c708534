-- jobs/promote -- puts jobs whose time has come in line.
--
-- KEYS   1 waiting     list    ids in line
--        2 index       hash    marks of the line, masks of the routes
--        3 strays      list    ids in line that have no lane yet
--        4 delayed     zset    ids for later; score = due_ms
--        5 deadletter  list    dead ids, newest first
--        6 events      stream  what happened
--        7 ..keys              registry and lane per lane, then status and result per job
-- ARGV   1 now_ms  2 wake  3 events_max  4 result_ttl_s  5 lanes  6 ..rest
--        of each lane: rid, priority, spec, server; of each job: id, kind, lane, result or ''
-- REPLY  {'promoted', how many}
--
-- Kinds: 'lane' goes in line; 'gone' has no data and is dropped; 'bad' cannot be understood and goes
-- to the dead letters.
--
-- Keeps: an id that is due leaves delayed once, whoever comes first; one that was put off in the
-- meantime stays.
local now, wake, lanes_count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[5])
local lanes, want = {}, {}
for n = 1, lanes_count do
  local at = 5 + 4 * (n - 1)
  lanes[n] = { registry = KEYS[6 + 2 * n - 1], key = KEYS[6 + 2 * n], rid = ARGV[at + 1],
    priority = tonumber(ARGV[at + 2]), spec = ARGV[at + 3], server = ARGV[at + 4] }
  want[n] = 'm:' .. lanes[n].rid
end
local s = line_open(KEYS[1], KEYS[2], KEYS[3], now, want)
for n = 1, lanes_count do lanes[n].mask = s.more[n] end

local entries, ids, bad = {}, {}, {}
local job_keys, job_args = 6 + 2 * lanes_count, 5 + 4 * lanes_count
for j = 1, (#ARGV - job_args) / 4 do
  local at, key = job_args + 4 * (j - 1), job_keys + 2 * (j - 1)
  local id, kind = ARGV[at + 1], ARGV[at + 2]
  local due = redis.call('ZSCORE', KEYS[4], id)
  if due and tonumber(due) <= now then
    redis.call('ZREM', KEYS[4], id)
    if kind == 'lane' then
      redis.call('SET', KEYS[key + 1], 'waiting')
      local n = #entries
      entries[n + 1], entries[n + 2], entries[n + 3] = id, tonumber(ARGV[at + 3]), 'back'
      ids[#ids + 1] = id
    elseif kind == 'bad' then
      redis.call('LPUSH', KEYS[5], id)
      redis.call('SET', KEYS[key + 1], 'dead')
      redis.call('SET', KEYS[key + 2], ARGV[at + 4], 'EX', ARGV[4])
      bad[#bad + 1] = id
    end
  end
end
line_push(s, lanes, entries, wake)
emit(KEYS[6], ARGV[3], 'due', now, ids)
emit(KEYS[6], ARGV[3], 'dead', now, bad, 'malformed')
line_close(s)
return { 'promoted', #ids + #bad }
