-- jobs/ingest -- gives jobs that a v1 producer put in line their place in a lane.
--
-- KEYS   1 waiting     list    ids in line
--        2 index       hash    marks of the line, masks of the routes
--        3 strays      list    ids in line that have no lane yet
--        4 limbo       zset    ids in line without data; score = when they are given up
--        5 deadletter  list    dead ids, newest first
--        6 events      stream  what happened
--        7 ..keys              registry and lane per lane, then status and result per job
-- ARGV   1 now_ms  2 wake  3 events_max  4 limbo_until_ms  5 result_ttl_s  6 lanes
--        7 ..rest
--        of each lane: rid, priority, spec, server; of each job: id, kind, lane, result or ''
-- REPLY  {'ingested', how many}
--
-- Kinds: 'lane' has a lane; 'limbo' has no data yet; 'bad' cannot be understood and goes to the
-- dead letters with its reason as result.
--
-- Keeps: an id leaves strays once, whoever of several clients comes first.
local now, wake, lanes_count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[6])
local lanes, want = {}, {}
for n = 1, lanes_count do
  local at = 6 + 4 * (n - 1)
  lanes[n] = { registry = KEYS[6 + 2 * n - 1], key = KEYS[6 + 2 * n], rid = ARGV[at + 1],
    priority = tonumber(ARGV[at + 2]), spec = ARGV[at + 3], server = ARGV[at + 4] }
  want[n] = 'm:' .. lanes[n].rid
end
local s = line_open(KEYS[1], KEYS[2], KEYS[3], now, want)
for n = 1, lanes_count do lanes[n].mask = s.more[n] end

local entries, bad, done = {}, {}, 0
local job_keys, job_args = 6 + 2 * lanes_count, 6 + 4 * lanes_count
for j = 1, (#ARGV - job_args) / 4 do
  local at, key = job_args + 4 * (j - 1), job_keys + 2 * (j - 1)
  local id, kind, n = ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  if redis.call('LREM', KEYS[3], 1, id) == 1 then
    done = done + 1
    if kind == 'lane' then
      -- What was looked at in doubt is near the front of its lane if it has its place there.
      if not redis.call('LPOS', lanes[n].key, id, 'MAXLEN', 400) then
        local last = #entries
        entries[last + 1], entries[last + 2], entries[last + 3] = id, n, 'listed'
      end
    elseif kind == 'limbo' then
      redis.call('ZADD', KEYS[4], 'NX', ARGV[4], id)
    elseif line_take(s, id, nil, true) then
      redis.call('LPUSH', KEYS[5], id)
      redis.call('SET', KEYS[key + 1], 'dead')
      redis.call('SET', KEYS[key + 2], ARGV[at + 4], 'EX', ARGV[5])
      bad[#bad + 1] = id
    end
  end
end
line_push(s, lanes, entries, wake)
emit(KEYS[6], ARGV[3], 'dead', now, bad, 'malformed')
line_close(s)
return { 'ingested', done }
