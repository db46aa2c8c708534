--!df flags=allow-undeclared-keys
-- test/echo -- reply with what came in.
-- uses: describe, join
--
-- KEYS   1 first   any  a key
--        2 ..rest  any  more keys
-- ARGV   1 number  2 text  3 ..more
-- REPLY  {'echo', first, rest, twice the number, text, more}
local others, twice = describe()
return {'echo', first, others, twice, text, join(ARGV, more + 1, ',')}
