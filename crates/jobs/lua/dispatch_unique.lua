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
local now, id, place, body = tonumber(ARGV[1]), ARGV[6], ARGV[7], ARGV[10]
if ARGV[4] ~= '' then
  local found = redis.call('GET', KEYS[8])
  if found then
    local until_ms, other, digest = string.match(found, '^(%d+) (.*) (%x*)$')
    if other and other ~= id and other ~= ARGV[13] and tonumber(until_ms) > now then
      return { digest == ARGV[12] and 'duplicate' or 'reused', other }
    end
  end
end
local there = redis.call('GET', KEYS[10])
if there then return { there == body and 'same' or 'taken' } end
local lanes, keys, args = read_lanes(1, 11, 13)
local pending = {}
for n = 1, #ARGV - args do
  local status = redis.call('GET', KEYS[keys + 2 * n - 1])
  if not status then
    return { 'missing', ARGV[args + n] }
  elseif status == 'dead' or status == 'failed' then
    if ARGV[11] == 'fail' then return { 'ended', ARGV[args + n] } end
  elseif status ~= 'completed' then
    pending[#pending + 1] = n
  end
end

local queue_state = queue_open(KEYS[1], KEYS[2], KEYS[3], now, {})
redis.call('SET', KEYS[10], body)
if ARGV[4] ~= '' then redis.call('SET', KEYS[8], ARGV[4] .. ' ' .. id .. ' ' .. ARGV[12], 'EX', ARGV[5]) end
if ARGV[9] ~= '' then redis.call('ZADD', KEYS[5], ARGV[9], id) end
if #pending > 0 then
  redis.call('SET', KEYS[11], 'delayed')
  for i = 1, #pending do
    local parent = ARGV[args + pending[i]]
    redis.call('SADD', KEYS[9], parent)
    redis.call('SADD', KEYS[keys + 2 * pending[i]], id)
    redis.call('SADD', KEYS[6], parent)
  end
elseif place == 'later' then
  redis.call('SET', KEYS[11], 'delayed')
  redis.call('ZADD', KEYS[4], ARGV[8], id)
  redis.call('PUBLISH', ARGV[2], 'later')
else
  redis.call('SET', KEYS[11], 'waiting')
  queue_push(queue_state, lanes, { id, 1, place }, ARGV[2])
end
emit(KEYS[7], ARGV[3], 'dispatched', now, { id })
queue_close(queue_state)
return { 'new' }
