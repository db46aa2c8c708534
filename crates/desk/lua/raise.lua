-- desk/raise -- raise a number to a value, never lower it.
--
-- KEYS   1 number  string  the greatest value so far
-- ARGV   1 value
-- REPLY  {'raised' or 'kept'}
--
-- Keeps: of many values raised at once the greatest stays.
local known = tonumber(redis.call('GET', number) or '')
if known and known >= tonumber(value) then return {'kept'} end
redis.call('SET', number, value)
return {'raised'}
