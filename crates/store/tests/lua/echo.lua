--!df flags=allow-undeclared-keys
-- test/echo -- reply with what came in.
--
-- KEYS   1 first   any  a key
--        2 ..rest  any  more keys
-- ARGV   1 number  2 text  3 ..more
-- REPLY  {'echo', first, rest, twice the number, text, more}
local first = KEYS[1]
local number, text = tonumber(ARGV[1]), ARGV[2]
return {'echo', first, join(KEYS, 2), double(number), text, join(ARGV, 3)}
