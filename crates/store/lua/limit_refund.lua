-- store/limit_refund -- give back units of a counter, a bucket or a calendar.
--
-- KEYS   1 limit     hash or string  by the algorithm
--        2 refunds   zset            ids of refunds that were made; score = when, in ms
-- ARGV   1 now_ms  2 refund_id  3 algorithm  4 units  5 charged_ms  6 a  7 b  8 c  9 keep_ms
-- REPLY  {'refunded', how many units} | {'repeated'}
--
-- a, b and c are the numbers of the rule, as the algorithm's own script has them; charged_ms is
-- when the units were charged.
--
-- Keeps: a refund that is repeated after a lost reply counts once. Units come back to the window or
-- period they were charged to, or not at all when it is over.
local now_ms, keep_ms = tonumber(now_ms), tonumber(keep_ms)
local units, charged_ms = tonumber(units), tonumber(charged_ms)
local b, c = tonumber(b), tonumber(c)
if redis.call('ZSCORE', refunds, refund_id) then return {'repeated'} end

local back = 0
if algorithm == 'counter' then
  local stored = redis.call('HMGET', limit, 'start_ms', 'now', 'before')
  local start_ms = tonumber(stored[1])
  local charged_start_ms = charged_ms - charged_ms % b
  local field, held
  if start_ms == charged_start_ms then
    field, held = 'now', tonumber(stored[2]) or 0
  elseif start_ms == charged_start_ms + b then
    field, held = 'before', tonumber(stored[3]) or 0
  end
  if field then
    back = math.min(units, held)
    redis.call('HSET', limit, field, string.format('%.0f', held - back))
  end
elseif algorithm == 'calendar' then
  local stored = redis.call('HMGET', limit, 'start_ms', 'used')
  if tonumber(stored[1]) == b then
    local used = tonumber(stored[2]) or 0
    back = math.min(units, used)
    redis.call('HSET', limit, 'used', string.format('%.0f', used - back))
  end
else
  local stored = redis.call('GET', limit)
  if stored then
    local space = string.find(stored, ' ', 1, true)
    local credits = tonumber(string.sub(stored, 1, space - 1))
    local more = math.min(c * b, credits + units * b)
    back = math.floor((more - credits) / b)
    redis.call('SET', limit, string.format('%.0f', more) .. string.sub(stored, space), 'KEEPTTL')
  end
end
redis.call('ZREMRANGEBYSCORE', refunds, '-inf', string.format('%.0f', now_ms - keep_ms))
redis.call('ZADD', refunds, string.format('%.0f', now_ms), refund_id)
redis.call('PEXPIRE', refunds, string.format('%.0f', keep_ms))
return {'refunded', back}
