-- line_of(policy, share, since, now_ms): returns the order of the queue. share = k means that at least
-- one admission in k goes to priority 0 while somebody of priority 0 waits; since = admissions of other
-- priorities since the last one of priority 0. Scores of priority 0 are at or above `normal`.
-- uses: num
local function line_of(policy, share, since, now_ms)
  local k = num(share, 0)
  if policy ~= 'strict' or k < 2 then k = 0 end
  return {
    share = k,
    since = math.min(num(since, 0), math.max(k - 1, 0)),
    normal = now_ms * 1000 - 500000000000000,
  }
end
