-- dns/count_queries -- add to the counters of one hour or day.
--
-- KEYS   1 counts   hash  number of queries by field; see statistics.rs
--        2 names    zset  names asked for; score = number of queries
--        3 blocked  zset  names blocked; score = number of queries
-- ARGV   1 keep_ms  2 names_keep_ms  3 fields_max  4 names_max  5 field_count  6 name_count  7 ..pairs
-- REPLY  {'counted'}
--
-- Keeps: at most fields_max fields and about names_max names; what finds no room is counted as 'x'.
local left = tonumber(fields_max) - redis.call('HLEN', counts)
local at = pairs
for _ = 1, tonumber(field_count) do
  local field, by = ARGV[at + 1], ARGV[at + 2]
  at = at + 2
  if left > 0 or redis.call('HEXISTS', counts, field) == 1 then
    if redis.call('HINCRBY', counts, field, by) == tonumber(by) then
      left = left - 1
    end
  else
    redis.call('HINCRBY', counts, 'x', by)
  end
end
for index = 1, tonumber(name_count) do
  redis.call('ZINCRBY', names, ARGV[at + 2], ARGV[at + 1])
  at = at + 2
end
while at + 2 <= #ARGV do
  redis.call('ZINCRBY', blocked, ARGV[at + 2], ARGV[at + 1])
  at = at + 2
end
-- Twice as many as are kept may gather before the seldom ones go.
local most = tonumber(names_max)
for _, key in ipairs({ names, blocked }) do
  if redis.call('ZCARD', key) > 2 * most then
    redis.call('ZREMRANGEBYRANK', key, 0, -most - 1)
  end
  redis.call('PEXPIRE', key, names_keep_ms)
end
redis.call('PEXPIRE', counts, keep_ms)
return { 'counted' }
