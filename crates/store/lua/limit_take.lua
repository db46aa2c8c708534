-- store/limit_take -- charge one request to several limits: to all of them, or to none.
-- uses: sliding_state, sliding_charge, fixed_state, fixed_charge, counter_state, counter_charge,
--   bucket_state, bucket_charge, calendar_state, calendar_charge, concurrent_state, concurrent_charge
--
-- KEYS   1 ..limits  zset, hash or string  one per limit, by its algorithm
-- ARGV   1 now_ms  2 request_id  3 ..rules
-- REPLY  {'allowed' or 'denied', then per limit: remaining, next_ms, retry_ms}
--
-- Each limit has five rules in a row: its algorithm, cost, and three numbers as its own script
-- (limit_sliding, limit_fixed …) has them. next_ms is when one unit more will be free (0: all are),
-- retry_ms when this cost would be allowed.
--
-- Keeps: a request that one limit denies is charged to none. Time that steps back frees nothing.
local now_ms = tonumber(now_ms)
local state = {
  sliding = sliding_state, fixed = fixed_state, counter = counter_state,
  bucket = bucket_state, calendar = calendar_state, concurrent = concurrent_state,
}
local charge = {
  sliding = sliding_charge, fixed = fixed_charge, counter = counter_charge,
  bucket = bucket_charge, calendar = calendar_charge, concurrent = concurrent_charge,
}

local found, allowed = {}, true
for index = 1, #KEYS - limits do
  local at = rules + index * 5 - 4
  local a, b, c = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local free, units, retry_ms, s1, s2, s3 =
    state[ARGV[at]](KEYS[limits + index], now_ms, request_id, tonumber(ARGV[at + 1]), a, b, c)
  if units > free then allowed = false end
  found[index] = {free, units, retry_ms, a, b, c, s1, s2, s3}
end

local reply = {allowed and 'allowed' or 'denied'}
for index = 1, #found do
  local f = found[index]
  local units = allowed and f[2] or 0
  local next_ms, charged = charge[ARGV[rules + index * 5 - 4]](
    KEYS[limits + index], now_ms, request_id, units, f[4], f[5], f[6], f[7], f[8], f[9])
  reply[#reply + 1] = math.floor(math.max(0, f[1] - charged))
  reply[#reply + 1] = math.floor(next_ms)
  reply[#reply + 1] = math.floor(f[3])
end
return reply
