-- jobs/once -- stores one job that has an idempotency key or that waits for other jobs.
--
-- KEYS   1 waiting   list    ids in line
--        2 index     hash    marks of the line, masks of the routes
--        3 strays    list    ids in line that have no lane yet
--        4 delayed   zset    ids for later; score = due_ms
--        5 expiring  zset    ids that must start by then; score = ms
--        6 parents   set     ids that other jobs wait for
--        7 events    stream  what happened
--        8 once      string  'until_ms id digest' of the job dispatched under the key
--        9 pending   set     ids this job waits for
--        10 registry hash    route name -> route
--        11 lane     list    number and id of the jobs in line of this route and priority
--        12 data     string  the job
--        13 status   string  its state
--        14 ..keys           status and children per parent
-- ARGV   1 now_ms  2 wake  3 events_max  4 once_until_ms or ''  5 once_ttl_s  6 rid  7 priority
--        8 spec  9 server  10 id  11 place  12 due_ms  13 expires_ms or ''  14 body  15 policy
--        16 digest  17 gone  18 ..parents
-- REPLY  {'new' or 'same' or 'taken'} | {'duplicate' or 'reused', id} | {'missing' or 'ended', parent}
--
-- The digest is that of the request: under one key, another request is 'reused'. `gone` is the id of
-- a job the caller has found removed, whose key is free again.
--
-- Keeps: under one key there is one job until its time is over. A job that waits for others is in
-- no line before the last of them has ended; each of them knows it. On every refusal nothing is
-- changed.
local now, id, place, body = tonumber(ARGV[1]), ARGV[10], ARGV[11], ARGV[14]
if ARGV[4] ~= '' then
  local found = redis.call('GET', KEYS[8])
  if found then
    local until_ms, other, digest = string.match(found, '^(%d+) (.*) (%x*)$')
    if other and other ~= id and other ~= ARGV[17] and tonumber(until_ms) > now then
      return { digest == ARGV[16] and 'duplicate' or 'reused', other }
    end
  end
end
local there = redis.call('GET', KEYS[12])
if there then return { there == body and 'same' or 'taken' } end
local pending = {}
for n = 1, #ARGV - 17 do
  local status = redis.call('GET', KEYS[12 + 2 * n])
  if not status then
    return { 'missing', ARGV[17 + n] }
  elseif status == 'dead' or status == 'failed' then
    if ARGV[15] == 'fail' then return { 'ended', ARGV[17 + n] } end
  elseif status ~= 'completed' then
    pending[#pending + 1] = n
  end
end

local s = line_open(KEYS[1], KEYS[2], KEYS[3], now, { 'm:' .. ARGV[6] })
redis.call('SET', KEYS[12], body)
if ARGV[4] ~= '' then redis.call('SET', KEYS[8], ARGV[4] .. ' ' .. id .. ' ' .. ARGV[16], 'EX', ARGV[5]) end
if ARGV[13] ~= '' then redis.call('ZADD', KEYS[5], ARGV[13], id) end
if #pending > 0 then
  redis.call('SET', KEYS[13], 'delayed')
  for i = 1, #pending do
    local parent = ARGV[17 + pending[i]]
    redis.call('SADD', KEYS[9], parent)
    redis.call('SADD', KEYS[13 + 2 * pending[i]], id)
    redis.call('SADD', KEYS[6], parent)
  end
elseif place == 'later' then
  redis.call('SET', KEYS[13], 'delayed')
  redis.call('ZADD', KEYS[4], ARGV[12], id)
  redis.call('PUBLISH', ARGV[2], 'later')
else
  redis.call('SET', KEYS[13], 'waiting')
  local lane = { registry = KEYS[10], key = KEYS[11], rid = ARGV[6], priority = tonumber(ARGV[7]),
    spec = ARGV[8], server = ARGV[9], mask = s.more[1] }
  line_push(s, { lane }, { id, 1, place }, ARGV[2])
end
emit(KEYS[7], ARGV[3], 'dispatched', now, { id })
line_close(s)
return { 'new' }
