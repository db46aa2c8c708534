-- store/limit_take -- charge one request to several limits: to all of them, or to none.
--
-- KEYS   1 ..limits  zset or hash  one per limit, by its kind
-- ARGV   1 now_ms  2 request_id  3 ..rules
-- REPLY  {'allowed' or 'denied', then per limit: remaining, next_ms, retry_ms}
--
-- Each limit has five rules in a row: kind, limit, window_ms, burst, cost. Kinds:
--   window   zset  a member per unit, score = when; exact over any window
--   counter  hash  start_ms, now, before; two windows, the older weighted by its overlap
--   fixed    hash  start_ms, used; a window opens with its first request
--   bucket   hash  credits, at_ms; a unit costs window_ms credits, a millisecond brings limit
-- next_ms is when one unit more will be free (0: all are), retry_ms when this cost would be allowed.
--
-- Keeps: numbers are whole and below 2^53. The same request charged again to a window is free; to
-- the other kinds it is charged again, which refuses more and never allows more. Time that steps
-- back frees nothing.
local now_ms = tonumber(now_ms)

local function whole(number)
  return string.format('%.0f', number)
end

-- Per kind: how many units are free, what the request costs, when that cost would be allowed, when
-- one unit more is free after so many are charged, and how to charge them.
local kinds = {}

function kinds.window(key, limit, window_ms, burst, cost)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', whole(now_ms - window_ms))
  local used = redis.call('ZCARD', key)
  if cost > 0 and redis.call('ZSCORE', key, request_id .. ':1') then cost = 0 end
  -- When the member of this rank leaves the window.
  local function leaves_ms(rank)
    local found = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
    return found[2] and math.max(1, tonumber(found[2]) + window_ms - now_ms) or 0
  end
  local over = used + cost - limit
  return {
    free = limit - used,
    cost = cost,
    retry_ms = over > 0 and leaves_ms(over - 1) or 0,
    next_ms = function(charged)
      return used > 0 and leaves_ms(0) or (charged > 0 and window_ms or 0)
    end,
    charge = function()
      for unit = 1, cost do
        redis.call('ZADD', key, whole(now_ms), request_id .. ':' .. unit)
      end
      redis.call('PEXPIRE', key, window_ms + 1000)
    end,
  }
end

function kinds.counter(key, limit, window_ms, burst, cost)
  local stored = redis.call('HMGET', key, 'start_ms', 'now', 'before')
  local start_ms = now_ms - now_ms % window_ms
  local was, now, before = tonumber(stored[1]), tonumber(stored[2]) or 0, tonumber(stored[3]) or 0
  if not was or was < start_ms then
    before = was == start_ms - window_ms and now or 0
    now = 0
  else
    -- A window in the future is one that time stepped back from; it still counts.
    start_ms = was
  end
  local into_ms = math.max(0, now_ms - start_ms)
  local weighted = math.ceil(before * (window_ms - into_ms) / window_ms)
  -- How far into a window only `units` of `full` weigh on the next.
  local function aged_ms(full, units)
    return math.max(0, math.ceil(window_ms - units * window_ms / full))
  end
  local retry_ms = 0
  if now + weighted + cost > limit then
    if now + cost <= limit then
      retry_ms = aged_ms(before, limit - cost - now) - into_ms
    else
      retry_ms = window_ms - into_ms + aged_ms(now, limit - cost)
    end
  end
  return {
    free = limit - now - weighted,
    cost = cost,
    retry_ms = retry_ms,
    next_ms = function(charged)
      if weighted > 0 then return math.max(1, aged_ms(before, weighted - 1) - into_ms) end
      local units = now + charged
      return units > 0 and window_ms - into_ms + aged_ms(units, units - 1) or 0
    end,
    charge = function()
      redis.call('HSET', key, 'start_ms', whole(start_ms), 'now', whole(now + cost), 'before', whole(before))
      redis.call('PEXPIRE', key, window_ms * 2 + 1000)
    end,
  }
end

function kinds.fixed(key, limit, window_ms, burst, cost)
  local stored = redis.call('HMGET', key, 'start_ms', 'used')
  local start_ms, used = tonumber(stored[1]), tonumber(stored[2]) or 0
  if not start_ms or start_ms + window_ms <= now_ms then
    start_ms, used = now_ms, 0
  end
  local left_ms = start_ms + window_ms - now_ms
  return {
    free = limit - used,
    cost = cost,
    retry_ms = used + cost > limit and left_ms or 0,
    next_ms = function(charged) return used + charged > 0 and left_ms or 0 end,
    charge = function()
      redis.call('HSET', key, 'start_ms', whole(start_ms), 'used', whole(used + cost))
      redis.call('PEXPIRE', key, left_ms + 1000)
    end,
  }
end

function kinds.bucket(key, limit, window_ms, burst, cost)
  local stored = redis.call('HMGET', key, 'credits', 'at_ms')
  local most = burst * window_ms
  local credits, at_ms = tonumber(stored[1]) or most, tonumber(stored[2]) or now_ms
  credits = math.min(most, credits + math.max(0, now_ms - at_ms) * limit)
  local short = cost * window_ms - credits
  return {
    free = math.floor(credits / window_ms),
    cost = cost,
    retry_ms = short > 0 and math.ceil(short / limit) or 0,
    next_ms = function(charged)
      local left = credits - charged * window_ms
      return left < most and math.ceil((window_ms - left % window_ms) / limit) or 0
    end,
    charge = function()
      redis.call('HSET', key, 'credits', whole(-short), 'at_ms', whole(now_ms))
      redis.call('PEXPIRE', key, math.ceil(most / limit) + 1000)
    end,
  }
end

local states, allowed = {}, true
for index = 1, #KEYS - limits do
  local key, at = KEYS[limits + index], rules + (index - 1) * 5
  local limit, window_ms = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local burst, cost = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  states[index] = kinds[ARGV[at + 1]](key, limit, window_ms, burst, cost)
  if states[index].cost > states[index].free then allowed = false end
end

local reply = {allowed and 'allowed' or 'denied'}
for index = 1, #states do
  local limit = states[index]
  local charged = allowed and limit.cost or 0
  local next_ms = limit.next_ms(charged)
  if charged > 0 then limit.charge() end
  reply[#reply + 1] = math.floor(math.max(0, limit.free - charged))
  reply[#reply + 1] = math.floor(next_ms)
  reply[#reply + 1] = math.floor(limit.retry_ms)
end
return reply
