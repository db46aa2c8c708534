-- check_each(state, charge, has_ids) -- charges each request to the one limit it names.
-- reads: limits, now_ms, checks
-- Requests of equal cost under equal rules stand side by side and share their arguments: how many they
-- are, cost, and three numbers of the rule; after them come their ids, if `has_ids`. `state` tells what
-- is free and when the cost fits, and writes nothing that counts; `charge` takes the units (0: none)
-- and tells when the next one is free.
local function check_each(state, charge, has_ids)
  local now_ms, floor, max = tonumber(now_ms), math.floor, math.max
  local reply, last = {'checked'}, 1
  local key, at, request_id = limits + 1, checks + 1, ''
  while key <= #KEYS do
    local cost = tonumber(ARGV[at + 1])
    local a, b, c = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local behind = key + tonumber(ARGV[at])
    at = at + 5
    while key < behind do
      if has_ids then
        request_id = ARGV[at]
        at = at + 1
      end
      local free, units, retry_ms, s1, s2, s3 =
        state(KEYS[key], now_ms, request_id, cost, a, b, c)
      if units <= free then
        local next_ms, charged = charge(KEYS[key], now_ms, request_id, units, a, b, c, s1, s2, s3)
        reply[last + 1] = floor(max(0, free - charged))
        reply[last + 2] = floor(next_ms)
        last = last + 2
      else
        local next_ms = charge(KEYS[key], now_ms, request_id, 0, a, b, c, s1, s2, s3)
        reply[last + 1] = -1 - floor(max(0, free))
        reply[last + 2] = floor(next_ms)
        reply[last + 3] = floor(retry_ms)
        last = last + 3
      end
      key = key + 1
    end
  end
  return reply
end
