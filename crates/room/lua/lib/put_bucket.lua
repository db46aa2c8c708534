-- put_bucket(...): writes tokens, remainder and their instant together.
-- uses: int
local function put_bucket(tokens, last_update, state, have, rem, last_ms)
  redis.call('SET', tokens, int(have))
  redis.call('SET', last_update, string.format('%.3f', last_ms / 1000))
  redis.call('HSET', state, 'rem', int(rem))
end
