-- jobs/dispatch_unique -- stores one job that has an idempotency key or that waits for other jobs.
-- uses: emit, queue_close, queue_open, queue_push, read_lanes
--
-- KEYS   1 waiting   list    waiting ids
--        2 index     hash    state of the index
--        3 unindexed list    waiting ids that have no lane yet
--        4 delayed   zset    ids for later; score = due_ms
--        5 expiring  zset    ids that must start by then; score = ms
--        6 parents   set     ids that other jobs wait for
--        7 events    stream  what happened
--        8 once      string  'until_ms id digest' of the job dispatched under the key
--        9 pending   set     ids this job waits for
--        10 data     string  the job
--        11 status   string  its state
--        12 ..keys           those of the lane, then status and children per parent
-- ARGV   1 now_ms  2 wake  3 events_max  4 once_until_ms or ''  5 once_ttl_s  6 id  7 place
--        8 due_ms  9 expires_ms or ''  10 body  11 policy  12 digest  13 gone  14 ..rest
--        the lane, as `read_lanes` reads it; then the parents
-- REPLY  {'new' or 'same' or 'taken'} | {'duplicate' or 'reused', id} | {'missing' or 'ended', parent}
--
-- The digest is that of the request: under one key, another request is 'reused'. `gone` is the id of
-- a job the caller has found removed, whose key is free again.
--
-- Keeps: under one key there is one job until its time is over. A job that waits for others is in
-- no line before the last of them has ended; each of them knows it. On every refusal nothing is
-- changed.
local now = tonumber(now_ms)
if once_until_ms ~= '' then
  local found = redis.call('GET', once)
  if found then
    local until_ms, other, known = string.match(found, '^(%d+) (.*) (%x*)$')
    if other and other ~= id and other ~= gone and tonumber(until_ms) > now then
      return { known == digest and 'duplicate' or 'reused', other }
    end
  end
end
local there = redis.call('GET', data)
if there then return { there == body and 'same' or 'taken' } end
local lane_list, parent_keys, parent_args = read_lanes(1, keys, rest)
local waits = {}
for n = 1, #ARGV - parent_args do
  local state = redis.call('GET', KEYS[parent_keys + 2 * n - 1])
  if not state then
    return { 'missing', ARGV[parent_args + n] }
  elseif state == 'dead' or state == 'failed' then
    if policy == 'fail' then return { 'ended', ARGV[parent_args + n] } end
  elseif state ~= 'completed' then
    waits[#waits + 1] = n
  end
end

local queue_state = queue_open(waiting, index, unindexed, now, {})
redis.call('SET', data, body)
if once_until_ms ~= '' then redis.call('SET', once, once_until_ms .. ' ' .. id .. ' ' .. digest, 'EX', once_ttl_s) end
if expires_ms ~= '' then redis.call('ZADD', expiring, expires_ms, id) end
if #waits > 0 then
  redis.call('SET', status, 'delayed')
  for i = 1, #waits do
    local parent = ARGV[parent_args + waits[i]]
    redis.call('SADD', pending, parent)
    redis.call('SADD', KEYS[parent_keys + 2 * waits[i]], id)
    redis.call('SADD', parents, parent)
  end
elseif place == 'later' then
  redis.call('SET', status, 'delayed')
  redis.call('ZADD', delayed, due_ms, id)
  redis.call('PUBLISH', wake, 'later')
else
  redis.call('SET', status, 'waiting')
  queue_push(queue_state, lane_list, { id, 1, place }, wake)
end
emit(events, events_max, 'dispatched', now, { id })
queue_close(queue_state)
return { 'new' }
