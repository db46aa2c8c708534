-- desk/admit_names -- add names to a set, as long as there are few enough: endpoints, apps, policies.
--
-- KEYS   1 known  set  names that have counters of their own
-- ARGV   1 most  2 ..names
-- REPLY  {'admitted', then per name: 1 or 0}
--
-- Keeps: the set holds at most `most` names; one that is in it stays in it.
local most = tonumber(most)
local count = redis.call('SCARD', known)
local reply = {'admitted'}
for index = names + 1, #ARGV do
  local is_known = redis.call('SISMEMBER', known, ARGV[index])
  if is_known == 0 and count < most then
    is_known = redis.call('SADD', known, ARGV[index])
    count = count + 1
  end
  reply[#reply + 1] = is_known
end
return reply
