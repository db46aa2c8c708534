-- check_each(state, charge) -- charges each request to the one limit it names.
-- reads: limits, now_ms, checks
-- Per limit there are five arguments after the time: request_id, cost, and three numbers of its
-- rule. `state` tells what is free and when the cost fits, and writes nothing that counts;
-- `charge` takes the units (0: none) and tells when the next one is free.
local function check_each(state, charge)
  local now_ms = tonumber(now_ms)
  local reply = {'checked'}
  for index = 1, #KEYS - limits do
    local at = checks + index * 5 - 4
    local key, request_id = KEYS[limits + index], ARGV[at]
    local a, b, c = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local free, units, retry_ms, s1, s2, s3 =
      state(key, now_ms, request_id, tonumber(ARGV[at + 1]), a, b, c)
    local allowed = units <= free
    if not allowed then units = 0 end
    local next_ms, charged = charge(key, now_ms, request_id, units, a, b, c, s1, s2, s3)
    local last = index * 4 - 2
    reply[last] = allowed and 1 or 0
    reply[last + 1] = math.floor(math.max(0, free - charged))
    reply[last + 2] = math.floor(next_ms)
    reply[last + 3] = math.floor(retry_ms)
  end
  return reply
end
