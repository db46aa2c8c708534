-- store/history_write -- add rows to a chunk of the history; the first writer of a field wins.
--
-- KEYS   1 chunk  hash  epoch: number of the chunk; the other fields are rows and claims
-- ARGV   1 epoch  2 ring  3 keep_ms  4 ..rows
-- REPLY  {'written', then per row: 1 or 0 (new)} | {'late'}
--
-- Each row is two arguments: its field and its content.
--
-- Keeps: the chunk holds rows of one epoch. A newer epoch replaces it; so does an older one if the
-- chunk is further ahead than the whole ring, as after a clock that was wrong. Repeating changes
-- nothing.
local epoch, known = tonumber(epoch), tonumber(redis.call('HGET', chunk, 'epoch'))
if known and known > epoch and known <= epoch + tonumber(ring) then
  return {'late'}
end

if known ~= epoch then
  redis.call('DEL', chunk)
  redis.call('HSET', chunk, 'epoch', string.format('%.0f', epoch))
  redis.call('PEXPIRE', chunk, tonumber(keep_ms))
end
local reply = {'written'}
for at = rows + 1, #ARGV, 2 do
  reply[#reply + 1] = redis.call('HSETNX', chunk, ARGV[at], ARGV[at + 1])
end
return reply
