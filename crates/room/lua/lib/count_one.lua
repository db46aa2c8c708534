-- count_one(stats, state, field, by): adds to an hourly counter and to its lifetime total.
local function count_one(stats, state, field, by)
  redis.call('HINCRBY', stats, field, by)
  redis.call('EXPIRE', stats, '86400', 'NX')
  redis.call('HINCRBY', state, field, by)
end
