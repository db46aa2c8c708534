-- dns/save_policy -- replaces the policy if it has the version the caller knows.
--
-- KEYS   1 policy   hash  the policy document and its version
-- ARGV   1 expected  2 document  3 now_ms  4 request_id
-- REPLY  {'saved', version} | {'conflict', version}
--
-- Keeps: every version has one document; a call repeated after a lost reply saves nothing twice.
local current = redis.call('HGET', policy, 'version') or '0'
if request_id ~= '' and redis.call('HGET', policy, 'request_id') == request_id then
  return { 'saved', current }
end
if current ~= expected then
  return { 'conflict', current }
end
local version = redis.call('HINCRBY', policy, 'version', '1')
redis.call('HSET', policy, 'document', document, 'changed_at', now_ms, 'request_id', request_id)
return { 'saved', tostring(version) }
