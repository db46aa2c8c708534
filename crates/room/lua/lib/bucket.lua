-- bucket(tokens, last_update, state, now_ms, rate): token bucket, read without writing: returns
-- whole tokens, the remainder in parts of rate.per_ms, the instant both are true for, and whether
-- the clock was set back so far that they must be written to go on from here.
-- A rate of 0 allows nothing, whatever was saved up before.
-- Whole-number arithmetic, so the result does not depend on how often it is asked.
-- uses: num
local function bucket(tokens, last_update, state, now_ms, rate)
  if rate.count == 0 then
    return 0, 0, now_ms
  end
  local have = num(redis.call('GET', tokens))
  local last = num(redis.call('GET', last_update))
  if not have or not last then
    return rate.burst, 0, now_ms
  end
  local last_ms = math.floor(last * 1000 + 0.5)
  local rem = num(redis.call('HGET', state, 'rem'), 0)
  local elapsed = now_ms - last_ms
  if elapsed < 0 then
    -- A caller whose clock is a little behind adds nothing; a clock set back restarts from there.
    local anew = elapsed < -1000
    return math.min(have, rate.burst), rem, anew and now_ms or last_ms, anew
  end
  if elapsed * 1.0 >= (rate.burst - have) * 1.0 * rate.per_ms / rate.count then
    return rate.burst, 0, now_ms
  end
  local parts = elapsed * rate.count + rem
  local added = math.floor(parts / rate.per_ms)
  if have + added >= rate.burst then
    return rate.burst, 0, now_ms
  end
  return have + added, parts - added * rate.per_ms, now_ms
end
