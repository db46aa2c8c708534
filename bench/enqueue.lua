-- The waiting room's enqueue as its original schema writes it: seven commands on five keys.
local existing = redis.call('GET', KEYS[4])
if existing and redis.call('EXISTS', 'position:' .. existing) == 1 then return existing end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[3], 'status', 'waiting', 'enqueued_at', ARGV[2], 'ip_hash', ARGV[3], 'metadata', ARGV[5])
redis.call('EXPIRE', KEYS[3], ARGV[4])
redis.call('SET', KEYS[4], ARGV[1], 'EX', ARGV[4])
redis.call('ZADD', KEYS[5], ARGV[2], ARGV[1])
return ARGV[1]
