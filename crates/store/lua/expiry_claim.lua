-- store/expiry_claim -- hand out what is past its deadline, a batch at a time.
--
-- KEYS   1 deadlines  zset  members; score = deadline_ms
-- ARGV   1 now_ms  2 most  3 again_ms
-- REPLY  {'due', then per member: member, deadline_ms}
--
-- Keeps: a claimed member stays with again_ms as its deadline, so that one whose handler died comes
-- up again; expiry_done takes it out.
local due = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, most)
local reply = {'due'}
for at = 1, #due, 2 do
  redis.call('ZADD', deadlines, again_ms, due[at])
  reply[#reply + 1] = due[at]
  reply[#reply + 1] = due[at + 1]
end
return reply
