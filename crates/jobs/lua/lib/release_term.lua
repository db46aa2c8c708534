-- release_term(claim_leases, claim_counts, claim, count) -- that many jobs of a claim do not run under its term any more; a
-- term without jobs is over.
local function release_term(claim_leases, claim_counts, claim, count)
  local token = string.match(claim, '^%d+')
  if redis.call('HINCRBY', claim_counts, token, count == 1 and '-1' or -count) <= 0 then
    redis.call('HDEL', claim_counts, token)
    redis.call('ZREM', claim_leases, token)
  end
end
