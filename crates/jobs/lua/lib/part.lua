-- part(terms, held, claim, count) -- that many jobs of a claim do not run under its term any more; a
-- term without jobs is over.
local function part(terms, held, claim, count)
  local token = string.match(claim, '^%d+')
  if redis.call('HINCRBY', held, token, count == 1 and '-1' or -count) <= 0 then
    redis.call('HDEL', held, token)
    redis.call('ZREM', terms, token)
  end
end
