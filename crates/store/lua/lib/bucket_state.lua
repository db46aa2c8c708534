-- bucket_state(key, now_ms, _, cost, count, per_ms, burst) -- refills: a unit is per_ms credits, a ms brings `count`.
-- Returns the units free, those to charge, when the cost fits, and the credits.
local function bucket_state(key, now_ms, _, cost, count, per_ms, burst)
  local most = burst * per_ms
  local stored = redis.call('GET', key)
  if not stored then return burst, cost, 0, most, now_ms end
  local space = string.find(stored, ' ', 1, true)
  local credits = space and tonumber(string.sub(stored, 1, space - 1))
  local at_ms = space and tonumber(string.sub(stored, space + 1))
  -- Another program wrote something else there.
  if not credits or not at_ms then return burst, cost, 0, most, now_ms end
  -- Time that steps back brings nothing, and nothing twice when it comes again.
  if now_ms > at_ms then
    credits = credits + (now_ms - at_ms) * count
    at_ms = now_ms
  end
  if credits > most then credits = most end
  local short = cost * per_ms - credits
  local retry_ms = short > 0 and at_ms - now_ms + math.ceil(short / count) or 0
  return math.floor(credits / per_ms), cost, retry_ms, credits, at_ms
end
