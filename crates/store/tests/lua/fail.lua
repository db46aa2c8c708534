-- test/fail -- fail in the way that is asked for.
-- uses: negate
--
-- KEYS   1 key  string  written before the failure
-- ARGV   1 how
-- REPLY  an error
redis.call('SET', key, 'written')
if how == 'reply' then
  return redis.error_reply('TAKEN by somebody else')
elseif how == 'type' then
  return redis.call('LPUSH', key, 'x')
end
if how == 'library' then return negate({}) end
error('broken')
