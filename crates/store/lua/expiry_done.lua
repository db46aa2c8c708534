-- store/expiry_done -- forget members that were handled, unless they got a new deadline meanwhile.
--
-- KEYS   1 deadlines  zset  members; score = deadline_ms
-- ARGV   1 again_ms  2 ..members
-- REPLY  {'done', how many were forgotten}
--
-- Keeps: only a deadline that expiry_claim set (again_ms) is removed. Repeating changes nothing.
local again_ms = tonumber(again_ms)
local forgotten = 0
for at = members + 1, #ARGV do
  local deadline = redis.call('ZSCORE', deadlines, ARGV[at])
  if deadline and tonumber(deadline) == again_ms then
    forgotten = forgotten + redis.call('ZREM', deadlines, ARGV[at])
  end
end
return {'done', forgotten}
