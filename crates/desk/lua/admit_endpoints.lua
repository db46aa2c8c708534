-- desk/admit_endpoints -- give endpoints counters of their own, as long as there are few enough.
--
-- KEYS   1 endpoints  set  names of the endpoints that have counters of their own
-- ARGV   1 most  2 ..names
-- REPLY  {'admitted', then per name: 1 or 0}
--
-- Keeps: the set holds at most `most` names; one that is in it stays in it.
local most = tonumber(most)
local count = redis.call('SCARD', endpoints)
local reply = {'admitted'}
for index = names + 1, #ARGV do
  local known = redis.call('SISMEMBER', endpoints, ARGV[index])
  if known == 0 and count < most then
    known = redis.call('SADD', endpoints, ARGV[index])
    count = count + 1
  end
  reply[#reply + 1] = known
end
return reply
