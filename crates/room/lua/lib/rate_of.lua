-- rate_of(count, per_seconds, burst): the stored rate as numbers; parts per token are per_ms.
-- uses: num
local function rate_of(count, per_seconds, burst)
  return {
    count = num(count, 1),
    per_ms = num(per_seconds, 1) * 1000,
    burst = num(burst, 1),
  }
end
