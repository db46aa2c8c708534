-- What a script finds in its world: Redis's globals, read-only, with no way out of them.
--
-- Runs once per interpreter. `host` holds the functions written in Rust. They never raise: they
-- answer with a word about what happened, and errors are raised here, so that a script sees plain
-- Lua strings and tables. Those that call commands leave the memory limit as it was; the others turn
-- it off, and `arm`, which puts it back, is called after each of them and wherever an error may be
-- caught.
--
-- Whatever catches errors (pcall, xpcall, coroutine.resume,
-- load) asks `dead` first: a script that was killed cannot catch that.

local host = ...

local arm, dead, where, spend = host.arm, host.dead, host.where, host.spend
local nerror, npcall, nxpcall, ntype, nselect = error, pcall, xpcall, type, select
local nsetmetatable, ngetmetatable = setmetatable, getmetatable
local nrawset, nrawget, nnext, npairs = rawset, rawget, next, pairs
local nload, nunpack = load, unpack
local ntostring, ntonumber, ncollect = tostring, tonumber, collectgarbage
local nfloor, nlog = math.floor, math.log
local nfind, nmatch, ngmatch, ngsub = string.find, string.match, string.gmatch, string.gsub
local nformat, nrep, nsub, nconcat = string.format, string.rep, string.sub, table.concat

local buffer = require("string.buffer")
local encode, decode = buffer.encode, buffer.decode

jit.off()
jit.flush()

-- Read-only tables ------------------------------------------------------------------------------

local READONLY = "Attempt to modify a readonly table"

-- The table behind each read-only one, and what getmetatable says of it.
local behind, metatable_of = {}, {}

local function deny()
  nerror(READONLY, 2)
end

local function readonly(t, shown)
  local proxy = {}
  behind[proxy] = t
  metatable_of[proxy] = shown or false
  return nsetmetatable(proxy, { __index = t, __newindex = deny })
end

local function missing(_, name)
  local kind = ntype(name)
  if kind ~= "string" and kind ~= "number" then
    nerror("Second argument to luaProtectedTableError must be a string or number", 2)
  end
  nerror("Script attempted to access nonexistent global variable '" .. name .. "'", 2)
end

-- The globals of scripts, and the same as a script sees them.
local globals = nsetmetatable({}, { __index = missing })
local G = readonly(globals, readonly({ __index = missing }))

-- Errors ----------------------------------------------------------------------------------------

local function typename(count, n, value)
  return n > count and "no value" or ntype(value)
end

-- Says which argument of which function is wrong, at the place of the function's caller.
local function bad_argument(n, name, text)
  nerror("bad argument #" .. n .. " to '" .. name .. "' (" .. text .. ")", 3)
end

local function to_number(value)
  local kind = ntype(value)
  if kind == "number" then return value end
  if kind == "string" then return ntonumber(value) end
end

local function to_string(value)
  local kind = ntype(value)
  if kind == "string" then return value end
  if kind == "number" then return ntostring(value) end
end

-- An error as pcall shows it: of a table with a text only the text, as before Redis 7.
local function caught(e)
  arm()
  if dead() then nerror(e, 0) end
  local kind = ntype(e)
  if kind == "table" then
    local text = e.err
    if ntype(text) == "string" or ntype(text) == "number" then return text end
  elseif kind == "userdata" then
    return ntostring(e)
  end
  return e
end

-- Time inside functions in C ---------------------------------------------------------------------
--
-- The hook counts instructions of the interpreter, and a function in C is one instruction however
-- long it takes. So what works on much data says how much, and the clock is looked at in between.

-- Turns the memory limit on again after a function of the host, and stops a script whose time is up.
local function rearm()
  arm()
  if spend(0) then nerror(host.death(), 0) end
end

-- Bytes or steps spent in functions in C since the last look at the clock, and how many may be.
local spent, MAX_SPENT = 0, 2 ^ 20

local function charge(cost)
  spent = spent + cost
  if spent >= MAX_SPENT then
    cost, spent = spent, 0
    if spend(cost) then nerror(host.death(), 0) end
  end
end

-- Calls from functions in C back into Lua that are under way: each takes some of the stack this
-- process has, so there is a bound on them, the same as in 5.1. Whoever catches an error says how
-- many there were before.
local MAX_NESTED = 190
local nested = 0

local function after_pcall(before, ok, ...)
  if ok then return true, ... end
  nested = before
  return false, caught((...))
end

local function pcall(...)
  if nselect("#", ...) == 0 then bad_argument(1, "pcall", "value expected") end
  return after_pcall(nested, npcall(...))
end

local function after_xpcall(before, ok, ...)
  nested = before
  if not ok then
    arm()
    if dead() then nerror((...), 0) end
  end
  return ok, ...
end

local function xpcall(f, handler, ...)
  if handler == nil and nselect("#", ...) == 0 then
    bad_argument(2, "xpcall", "value expected")
  end
  return after_xpcall(nested, nxpcall(f, function(e)
    arm()
    if dead() then return e end
    if ntype(e) == "userdata" then e = ntostring(e) end
    return handler(e)
  end))
end

local ncreate, nresume = coroutine.create, coroutine.resume

local function resume(...)
  if nested >= MAX_NESTED then return false, "C stack overflow" end
  local before = nested
  nested = before + 1
  return after_xpcall(before, nresume(...))
end

local function after_wrapped(before, ok, ...)
  nested = before
  if ok then return ... end
  arm()
  local e = ...
  if not dead() and ntype(e) == "string" then nerror(e, 2) end
  nerror(e, 0)
end

local function wrap(f)
  local co = ncreate(f)
  return function(...)
    if nested >= MAX_NESTED then nerror("C stack overflow", 2) end
    local before = nested
    nested = before + 1
    return after_wrapped(before, nresume(co, ...))
  end
end

-- Redis -----------------------------------------------------------------------------------------

local host_call, host_calls, number_of = host.call, host.calls, host.number_of
local call_with_one, call_with_two, call_with_three = host_calls[2], host_calls[3], host_calls[4]

-- What they answer: a value, and one of these if it is more than a plain one.
local OKAY, STATUS, TABLE, ERROR, MISUSE = 1, 2, 3, 4, 5

-- Numbers of commands by the names they are called by. There is a bound on them.
local numbers = {}

local function call_error(text, known)
  return { err = text, ignore_error_stats_update = known }
end

-- Are these `count` values all strings, and no more than `host_calls` take?
local function are_strings(count, a, b, c, d, e, f, g, h, i, j, k, l)
  if ntype(a) ~= "string" then return count == 0 end
  if ntype(b) ~= "string" then return count == 1 end
  if ntype(c) ~= "string" then return count == 2 end
  if ntype(d) ~= "string" then return count == 3 end
  if ntype(e) ~= "string" then return count == 4 end
  if ntype(f) ~= "string" then return count == 5 end
  if ntype(g) ~= "string" then return count == 6 end
  if ntype(h) ~= "string" then return count == 7 end
  if ntype(i) ~= "string" then return count == 8 end
  if ntype(j) ~= "string" then return count == 9 end
  if ntype(k) ~= "string" then return count == 10 end
  if ntype(l) ~= "string" then return count == 11 end
  return count == 12
end

-- The answer of a command, however it is called.
local function any_command(count, ...)
  if count == 0 then
    return "ERR Please specify at least one argument for this redis lib call", MISUSE
  end
  if are_strings(count, ...) then
    local name = ...
    local number = numbers[name] or number_of(name)
    if number then
      numbers[name] = number
      return host_calls[count](number, ...)
    end
  end
  local ok, packed = npcall(encode, { ... })
  if not ok then
    if dead() then nerror(packed, 0) end
    return "ERR Lua redis lib command arguments must be strings or integers", MISUSE
  end
  return host_call(packed, count)
end

-- What a script gets for an answer that is more than a plain value, and whether it is an error.
local function told(value, kind)
  if kind == OKAY then return { ok = "OK" } end
  if kind == STATUS then return { ok = value } end
  if kind == TABLE then return (decode(value)) end
  if kind == ERROR then return call_error(value, true), true end
  if kind == MISUSE then return call_error(value), true end
  nerror(value, 0) -- killed
end

-- This is what scripts spend their time in, so the most usual calls take a shorter way.
local function call(...)
  local count = nselect("#", ...)
  local name, a, b, c = ...
  local number = numbers[name]
  local value, kind
  if number and count == 2 and ntype(a) == "string" then
    value, kind = call_with_one(number, true, a)
  elseif number and count == 3 and ntype(a) == "string" and ntype(b) == "string" then
    value, kind = call_with_two(number, true, a, b)
  elseif number and count == 4 and ntype(a) == "string" and ntype(b) == "string"
    and ntype(c) == "string" then
    value, kind = call_with_three(number, true, a, b, c)
  else
    value, kind = any_command(count, ...)
  end
  if kind == nil then return value end
  if kind == OKAY then return { ok = "OK" } end
  local answer, failed = told(value, kind)
  if failed then nerror(answer, 0) end
  return answer
end

local function rpcall(...)
  local value, kind = any_command(nselect("#", ...), ...)
  if kind == nil then return value end
  return (told(value, kind))
end

local function raise(text)
  nerror(call_error("ERR " .. text), 0)
end

-- C strings end at a zero byte.
local function cstring(s)
  return (nmatch(s, "^%Z*"))
end

-- Text of an error in the form `CODE message`; without a code it is given ERR.
local function coded(text)
  local code, message = nmatch(text, "^([^ ]*) (.*)$")
  if not code then code, message = "ERR", text end
  message = nmatch(message, "^[\r\n]*(.-)[\r\n]*$")
  return code .. " " .. message
end

local redis = {
  call = call,
  pcall = rpcall,
  REDIS_VERSION = host.version,
  REDIS_VERSION_NUM = host.version_num,
  LOG_DEBUG = 0,
  LOG_VERBOSE = 1,
  LOG_NOTICE = 2,
  LOG_WARNING = 3,
  REPL_NONE = 0,
  REPL_AOF = 1,
  REPL_SLAVE = 2,
  REPL_REPLICA = 2,
  REPL_ALL = 3,
}

function redis.error_reply(...)
  local text = ...
  if nselect("#", ...) ~= 1 or ntype(text) ~= "string" then
    return call_error("ERR wrong number or type of arguments")
  end
  text = cstring(text)
  if nsub(text, 1, 1) == "-" then text = nsub(text, 2) end
  return { err = coded(text) }
end

function redis.status_reply(...)
  local text = ...
  if nselect("#", ...) ~= 1 or ntype(text) ~= "string" then
    return call_error("ERR wrong number or type of arguments")
  end
  return { ok = text }
end

function redis.sha1hex(...)
  if nselect("#", ...) ~= 1 then raise("wrong number of arguments") end
  local digest = host.sha1hex(to_string((...)) or "")
  rearm()
  return digest
end

function redis.log(...)
  local count = nselect("#", ...)
  if count < 2 then raise("redis.log() requires two arguments or more.") end
  local level = to_number((...))
  if not level then raise("First argument must be a number (log level).") end
  level = level < 0 and -nfloor(-level) or nfloor(level)
  if not (level >= 0 and level <= 3) then raise("Invalid debug level.") end
  local words = {}
  for i = 2, count do
    local word = to_string((nselect(i, ...)))
    if word then words[#words + 1] = word end
  end
  host.log(level, nconcat(words, " "))
  arm()
end

function redis.setresp(...)
  if nselect("#", ...) ~= 1 then raise("redis.setresp() requires one argument.") end
  local version = to_number((...))
  if version ~= 2 and version ~= 3 then raise("RESP version must be 2 or 3.") end
  host.setresp(version)
  arm()
end

function redis.set_repl(...)
  if nselect("#", ...) ~= 1 then raise("redis.set_repl() requires two arguments.") end
  local flags = to_number((...)) or 0
  if bit.band(flags, bit.bnot(3)) ~= 0 then
    raise("Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.")
  end
end

function redis.acl_check_cmd(...)
  if nselect("#", ...) == 0 then
    raise("Please specify at least one argument for this redis lib call")
  end
  local ok, packed = npcall(encode, { ... })
  if not ok then raise("Lua redis lib command arguments must be strings or integers") end
  local answer = host.acl_check(packed)
  arm()
  if answer == nil then raise("Invalid command passed to redis.acl_check_cmd()") end
  return answer
end

function redis.breakpoint()
  return false
end

function redis.debug() end

function redis.replicate_commands()
  return true
end

-- Values to and from Rust -----------------------------------------------------------------------

-- Packs what cannot be a tree in the wire format: all tables in a list, references between them.
-- The first table holds nothing but the value.
local function pack_graph(value)
  local number, list, queue = {}, {}, {}
  local function reference(v)
    local kind = ntype(v)
    if kind == "table" then
      local n = number[v]
      if not n then
        n = #queue + 1
        queue[n] = v
        number[v] = n
      end
      return { n }
    elseif kind == "function" or kind == "thread" or kind == "userdata" then
      if v == host.null then return v end
      return { 0, kind }
    end
    return v
  end
  reference({ value })
  local n = 1
  while queue[n] do
    local from, to = queue[n], {}
    local k, v = nnext(from)
    while k ~= nil do
      to[reference(k)] = reference(v)
      k, v = nnext(from, k)
    end
    list[n] = to
    n = n + 1
  end
  return encode(list)
end

-- Packs a value; true if as a graph.
local function pack(value)
  local ok, packed = npcall(encode, value)
  if ok then return packed, false end
  arm()
  if dead() then nerror(packed, 0) end
  return pack_graph(value), true
end

-- The value Rust packed: a tree, or a list of tables in which `{n}` stands for the nth.
local function unpack_value(packed, graph)
  local value = decode(packed)
  if not graph then return value end
  for _, t in npairs(value) do
    for k, v in npairs(t) do
      if ntype(v) == "table" then t[k] = value[v[1]] end
    end
  end
  return value[1]
end

-- cjson -----------------------------------------------------------------------------------------

local INT_MAX = 2147483647

-- The library with settings of its own. They live as long as the interpreter, as in Redis.
local function new_cjson()
  local settings = { 0, 2, 10, 1000, 1000, 0, 1, 14 }
  local packed_settings = encode(settings)
  local keep_buffer = true
  local CONVERT, RATIO, SAFE, ENCODE_DEPTH, DECODE_DEPTH, ENCODE_INVALID, DECODE_INVALID, PRECISION =
    1, 2, 3, 4, 5, 6, 7, 8

  local function set(which, value)
    settings[which] = value
    packed_settings = encode(settings)
  end

  local function too_many(count, most, name)
    if count > most then
      nerror("bad argument #" .. most + 1 .. " to '" .. name .. "' (found too many arguments)", 3)
    end
  end

  local function integer(n, value, which, least, most, name)
    if value ~= nil then
      local number = to_number(value)
      if not number then
        nerror("bad argument #" .. n .. " to '" .. name .. "' (number expected, got "
          .. ntype(value) .. ")", 3)
      end
      number = number < 0 and -nfloor(-number) or nfloor(number)
      if not (number >= least and number <= most) then
        nerror("bad argument #1 to '" .. name .. "' (expected integer between " .. least
          .. " and " .. nformat("%d", most) .. ")", 3)
      end
      set(which, number)
    end
    return settings[which]
  end

  local function option(n, value, current, options, name)
    if value == nil then return current end
    if ntype(value) == "boolean" then return value and 1 or 0 end
    local word = to_string(value)
    if not word then
      nerror("bad argument #" .. n .. " to '" .. name .. "' (string expected, got "
        .. ntype(value) .. ")", 3)
    end
    for i = 1, #options do
      if options[i] == word then return i - 1 end
    end
    nerror("bad argument #" .. n .. " to '" .. name .. "' (invalid option '" .. word .. "')", 3)
  end

  local switch = { "off", "on" }
  local lib = { null = host.null, _NAME = "cjson", _VERSION = "2.1.0" }

  function lib.encode(...)
    if nselect("#", ...) ~= 1 then bad_argument(1, "encode", "expected 1 argument") end
    local packed, graph = pack((...))
    local ok, text = host.json_encode(packed, graph, packed_settings)
    rearm()
    if not ok then nerror(text, 2) end
    return text
  end

  function lib.decode(...)
    if nselect("#", ...) ~= 1 then bad_argument(1, "decode", "expected 1 argument") end
    local text = to_string((...))
    if not text then
      bad_argument(1, "decode", "string expected, got " .. ntype((...)))
    end
    local kind, packed = host.json_decode(text, packed_settings)
    rearm()
    if kind == 2 then nerror(packed, 2) end
    return (unpack_value(packed, kind == 1))
  end

  function lib.encode_sparse_array(...)
    too_many(nselect("#", ...), 3, "encode_sparse_array")
    local convert, ratio, safe = ...
    set(CONVERT, option(1, convert, settings[CONVERT], switch, "encode_sparse_array"))
    ratio = integer(2, ratio, RATIO, 0, INT_MAX, "encode_sparse_array")
    safe = integer(3, safe, SAFE, 0, INT_MAX, "encode_sparse_array")
    return settings[CONVERT] == 1, ratio, safe
  end

  function lib.encode_max_depth(...)
    too_many(nselect("#", ...), 1, "encode_max_depth")
    local depth = integer(1, (...), ENCODE_DEPTH, 1, INT_MAX, "encode_max_depth")
    return depth
  end

  function lib.decode_max_depth(...)
    too_many(nselect("#", ...), 1, "decode_max_depth")
    local depth = integer(1, (...), DECODE_DEPTH, 1, INT_MAX, "decode_max_depth")
    return depth
  end

  function lib.encode_number_precision(...)
    too_many(nselect("#", ...), 1, "encode_number_precision")
    local digits = integer(1, (...), PRECISION, 1, 14, "encode_number_precision")
    return digits
  end

  function lib.encode_keep_buffer(...)
    too_many(nselect("#", ...), 1, "encode_keep_buffer")
    keep_buffer = option(1, (...), keep_buffer and 1 or 0, switch, "encode_keep_buffer") == 1
    return keep_buffer
  end

  function lib.encode_invalid_numbers(...)
    too_many(nselect("#", ...), 1, "encode_invalid_numbers")
    local words = { "off", "on", "null" }
    set(ENCODE_INVALID,
      option(1, (...), settings[ENCODE_INVALID], words, "encode_invalid_numbers"))
    local value = settings[ENCODE_INVALID]
    if value == 2 then return "null" end
    return value == 1
  end

  function lib.decode_invalid_numbers(...)
    too_many(nselect("#", ...), 1, "decode_invalid_numbers")
    set(DECODE_INVALID,
      option(1, (...), settings[DECODE_INVALID], switch, "decode_invalid_numbers"))
    return settings[DECODE_INVALID] == 1
  end

  lib.new = new_cjson
  return lib
end

-- A script that makes its own may change it.
local cjson = new_cjson()

-- cmsgpack --------------------------------------------------------------------------------------

local cmsgpack = {
  _NAME = "cmsgpack",
  _VERSION = "lua-cmsgpack 0.4.0",
  _COPYRIGHT = "Copyright (C) 2012, Salvatore Sanfilippo",
  _DESCRIPTION = "MessagePack C implementation for Lua",
}

function cmsgpack.pack(...)
  local count = nselect("#", ...)
  if count == 0 then bad_argument(0, "pack", "MessagePack pack needs input.") end
  local packed, graph = pack({ ... })
  local ok, bytes = host.msgpack_pack(packed, graph, count)
  rearm()
  if not ok then nerror(bytes, 2) end
  return bytes
end

-- Unpacks up to `limit` values from `offset` on: their list, their number, where the next is.
local function msgpack_unpack(name, given, bytes, limit, offset)
  local s = to_string(bytes)
  if not s then
    nerror("bad argument #1 to '" .. name .. "' (string expected, got "
      .. typename(given, 1, bytes) .. ")", 3)
  end
  local kind, packed, count, after = host.msgpack_unpack(s, limit, offset)
  rearm()
  if kind == 2 then
    -- That one comes from the interpreter, which names no place then.
    nerror(packed, nfind(packed, "^table index") and 0 or 3)
  end
  return unpack_value(packed, kind == 1), count, after
end

local function integer_argument(n, name, count, value, default)
  if default and (n > count or value == nil) then return default end
  local number = to_number(value)
  if not number then
    nerror("bad argument #" .. n .. " to '" .. name .. "' (number expected, got "
      .. typename(count, n, value) .. ")", 3)
  end
  return number < 0 and -nfloor(-number) or nfloor(number)
end

function cmsgpack.unpack(...)
  local list, count = msgpack_unpack("unpack", nselect("#", ...), (...), 0, 0)
  return nunpack(list, 1, count)
end

function cmsgpack.unpack_one(...)
  local bytes, offset = ...
  local given = nselect("#", ...)
  offset = integer_argument(2, "unpack_one", given, offset, 0)
  local list, count, after = msgpack_unpack("unpack_one", given, bytes, 1, offset)
  return after, nunpack(list, 1, count)
end

function cmsgpack.unpack_limit(...)
  local bytes, limit, offset = ...
  local given = nselect("#", ...)
  limit = integer_argument(2, "unpack_limit", given, limit)
  offset = integer_argument(3, "unpack_limit", given, offset, 0)
  local list, count, after = msgpack_unpack("unpack_limit", given, bytes, limit, offset)
  -- Without a limit and from the start it is the same as unpack.
  if limit == 0 and offset == 0 then return nunpack(list, 1, count) end
  return after, nunpack(list, 1, count)
end

-- struct ----------------------------------------------------------------------------------------

local struct = {}

local function format_argument(name, count, value)
  local fmt = to_string(value)
  if not fmt then
    nerror("bad argument #1 to '" .. name .. "' (string expected, got "
      .. typename(count, 1, value) .. ")", 3)
  end
  return fmt
end

function struct.pack(...)
  local count = nselect("#", ...)
  local fmt = format_argument("pack", count, (...))
  local packed, graph = pack({ ... })
  local ok, bytes = host.struct_pack(fmt, packed, graph, count)
  rearm()
  if not ok then nerror(bytes, 2) end
  return bytes
end

function struct.unpack(...)
  local fmt, data, at = ...
  local count = nselect("#", ...)
  fmt = format_argument("unpack", count, fmt)
  local s = to_string(data)
  if not s then
    bad_argument(2, "unpack", "string expected, got " .. typename(count, 2, data))
  end
  at = integer_argument(3, "unpack", count, at, 1)
  local ok, packed, n = host.struct_unpack(fmt, s, at)
  rearm()
  if not ok then nerror(packed, 2) end
  return nunpack(decode(packed), 1, n)
end

function struct.size(...)
  local fmt = format_argument("size", nselect("#", ...), (...))
  local size, text = host.struct_size(fmt)
  arm()
  if not size then nerror(text, 2) end
  return size
end

-- string ----------------------------------------------------------------------------------------

-- The interpreter's own functions serve what cannot take long; the rest goes through a matcher
-- that counts its steps. Methods of strings are found in this table, so it is changed in place.

-- How often a failing pattern may go over the subject, as a power; by pattern.
local powers, powers_count = {}, 0

local function power_of(p)
  local body = nsub(p, 1, 1) == "^" and nsub(p, 2) or p
  local power = body == p and 1 or 0
  -- The last item never backtracks.
  local _, again = ngsub(nsub(body, 1, -2), "[*+%-?]", "")
  local _, scans = ngsub(body, "%%[b%d]", "")
  power = power + again + scans
  -- Two things mean something else here than in 5.1.
  if nfind(p, "%%[gG]") or nfind(p, "%z") then power = 1000 end
  if powers_count >= 1000 then powers, powers_count = {}, 0 end
  powers[p] = power
  powers_count = powers_count + 1
  return power
end

local STEPS = 1e7

local function quick(s, p)
  local power = powers[p] or power_of(p)
  if power == 0 then return true end
  local steps = (#s + 1) ^ power
  if steps > STEPS then return false end
  if steps > 1000 then charge(steps) end
  return true
end

-- Where p matches s next, from init on: a list of start, end and captures, how many these are,
-- and whether a capture has no end; or nothing.
local function next_match(s, p, init, native)
  if native then
    local found = { nfind(s, p, init) }
    if found[1] == nil then return end
    return found, #found, false
  end
  local kind, packed, count, unfinished = host.match(s, p, init)
  arm()
  if kind == 0 then return end
  if kind == 1 then return decode(packed), count, unfinished end
  if kind == 2 then nerror(packed, 3) end
  nerror(packed, 0) -- killed
end

local function subject(name, count, s, p)
  local text = to_string(s)
  if not text then
    nerror("bad argument #1 to '" .. name .. "' (string expected, got "
      .. typename(count, 1, s) .. ")", 3)
  end
  local pattern = to_string(p)
  if not pattern then
    nerror("bad argument #2 to '" .. name .. "' (string expected, got "
      .. typename(count, 2, p) .. ")", 3)
  end
  return text, pattern
end

local function start_of(s, init)
  if init < 0 then
    init = #s + init + 1
    if init < 1 then init = 1 end
  elseif init == 0 then
    init = 1
  elseif init > #s + 1 then
    init = #s + 1
  end
  return init
end

local function slow_find(...)
  local s, p, init, plain = ...
  local count = nselect("#", ...)
  s, p = subject("find", count, s, p)
  init = start_of(s, integer_argument(3, "find", count, init, 1))
  if plain or not nfind(p, "[%^%$%*%+%?%.%(%[%%%-]") then
    local from = host.find_plain(s, p, init)
    rearm()
    if from then return from, from + #p - 1 end
    return nil
  end
  local found, n, unfinished = next_match(s, p, init)
  if not found then return nil end
  if unfinished then nerror("unfinished capture", 2) end
  return nunpack(found, 1, n)
end

local function find(...)
  local s, p, _, plain = ...
  if ntype(s) == "string" and ntype(p) == "string" then
    local steps = (#s + 1) * (#p + 1)
    if steps <= STEPS and (plain or quick(s, p)) then
      if steps > 1000 then charge(steps) end
      return nfind(...)
    end
  end
  return slow_find(...)
end

local function slow_match(...)
  local s, p, init = ...
  local count = nselect("#", ...)
  s, p = subject("match", count, s, p)
  init = start_of(s, integer_argument(3, "match", count, init, 1))
  local found, n, unfinished = next_match(s, p, init)
  if not found then return nil end
  if unfinished then nerror("unfinished capture", 2) end
  if n == 2 then return nsub(s, found[1], found[2]) end
  return nunpack(found, 3, n)
end

local function match(...)
  local s, p = ...
  if ntype(s) == "string" and ntype(p) == "string" and quick(s, p) then return nmatch(...) end
  return slow_match(...)
end

local function slow_gmatch(...)
  local s, p = ...
  s, p = subject("gmatch", nselect("#", ...), s, p)
  -- There, unlike elsewhere, ^ is no anchor.
  if nsub(p, 1, 1) == "^" then p = "%" .. p end
  local at = 1
  return function()
    if at > #s + 1 then return nil end
    local found, n, unfinished = next_match(s, p, at)
    if not found then
      at = #s + 2
      return nil
    end
    if unfinished then nerror("unfinished capture", 2) end
    at = found[2] + 1
    if found[2] < found[1] then at = at + 1 end
    if n == 2 then return nsub(s, found[1], found[2]) end
    return nunpack(found, 3, n)
  end
end

local function gmatch(...)
  local s, p = ...
  if ntype(s) == "string" and ntype(p) == "string" and nsub(p, 1, 1) ~= "^" and quick(s, p) then
    return ngmatch(...)
  end
  return slow_gmatch(...)
end

-- The ith capture, or nothing and what is wrong.
local function capture(found, n, s, i)
  if i == 0 or (i == 1 and n == 2) then return nsub(s, found[1], found[2]) end
  if i + 2 > n then return nil, "invalid capture index" end
  if found[i + 2] == false then return nil, "unfinished capture" end
  return found[i + 2]
end

-- What stands for a match, or nothing and what is wrong.
local function replacement(repl, kind, found, n, unfinished, s)
  local value, wrong
  if kind == "string" then
    local text = ngsub(repl, "%%(.?)", function(c)
      local i = ntonumber(c)
      if not i then return c end
      local piece, problem = capture(found, n, s, i)
      wrong = wrong or problem
      return piece
    end)
    if wrong then return nil, wrong end
    return text
  elseif kind == "table" then
    local key
    key, wrong = capture(found, n, s, 1)
    if wrong then return nil, wrong end
    value = repl[key]
  elseif unfinished then
    return nil, "unfinished capture"
  elseif n == 2 then
    value = repl(nsub(s, found[1], found[2]))
  else
    value = repl(nunpack(found, 3, n))
  end
  if not value then return nsub(s, found[1], found[2]) end
  local text = to_string(value)
  if not text then return nil, "invalid replacement value (a " .. ntype(value) .. ")" end
  return text
end

local function slow_gsub(native, ...)
  local s, p, repl, most = ...
  local count = nselect("#", ...)
  s, p = subject("gsub", count, s, p)
  local kind = ntype(repl)
  if kind == "number" then
    kind, repl = "string", ntostring(repl)
  elseif kind ~= "string" and kind ~= "function" and kind ~= "table" then
    bad_argument(3, "gsub", "string/function/table expected")
  end
  most = integer_argument(4, "gsub", count, most, #s + 1)
  local anchored = nsub(p, 1, 1) == "^"
  local out, at, done = buffer.new(), 1, 0
  while done < most do
    local found, n, unfinished = next_match(s, p, at, native)
    if not found then break end
    local from, to = found[1], found[2]
    if from > at then out:put(nsub(s, at, from - 1)) end
    done = done + 1
    local text, wrong = replacement(repl, kind, found, n, unfinished, s)
    if wrong then nerror(wrong, 2) end
    out:put(text)
    at = to + 1
    if to < from then
      if from > #s then break end
      out:put(nsub(s, from, from))
      at = from + 1
    end
    if anchored then break end
  end
  if at <= #s then out:put(nsub(s, at)) end
  return out:tostring(), done
end

-- A replacement that runs Lua is called from here, not from within a function in C, of which
-- there cannot be many on the stack.
local function gsub(...)
  local s, p, repl = ...
  if ntype(s) == "string" and ntype(p) == "string" and quick(s, p) then
    local kind = ntype(repl)
    if kind == "function" or (kind == "table" and ngetmetatable(repl)) then
      return slow_gsub(true, ...)
    end
    return ngsub(...)
  end
  return slow_gsub(false, ...)
end

-- How many values a format takes, if it has nothing but what 5.1 and this interpreter format
-- alike; else false.
local formats, formats_count = {}, 0

local function look_at_format(fmt)
  local count = 0
  local function taken()
    count = count + 1
    return ""
  end
  local rest = ngsub(fmt, "%%%%", "")
  rest = ngsub(rest, "%%[-+ #0]?%d?%d?[diouxXcseEfgG]", taken)
  rest = ngsub(rest, "%%[-+ #0]?%d?%d?%.%d?%d?[diouxXcseEfgG]", taken)
  if nfind(rest, "%", 1, true) then count = false end
  if formats_count >= 1000 then formats, formats_count = {}, 0 end
  formats[fmt] = count
  formats_count = formats_count + 1
  return count
end

local function quoted(s)
  return '"' .. ngsub(s, '[%z\r\n"\\]', {
    ["\0"] = "\\000",
    ["\r"] = "\\r",
    ["\n"] = "\\\n",
    ['"'] = '\\"',
    ["\\"] = "\\\\",
  }) .. '"'
end

-- One value after the other, with every check of 5.1.
local function slow_format(...)
  local count = nselect("#", ...)
  local fmt = to_string((...))
  if not fmt then
    bad_argument(1, "format", "string expected, got " .. typename(count, 1, (...)))
  end
  local out, at, n = buffer.new(), 1, 1
  while true do
    local percent = nfind(fmt, "%", at, true)
    out:put(nsub(fmt, at, (percent or 0) - 1))
    if not percent then return out:tostring() end
    if nsub(fmt, percent + 1, percent + 1) == "%" then
      out:put("%")
      at = percent + 2
    else
      n = n + 1
      if n > count then bad_argument(n, "format", "no value") end
      local value = nselect(n, ...)
      local flags, size, last = nmatch(fmt, "^([-+ #0]*)(%d?%d?%.%d?%d?)()", percent + 1)
      if not flags then
        flags, size, last = nmatch(fmt, "^([-+ #0]*)(%d?%d?)()", percent + 1)
      end
      if #flags >= 6 then nerror("invalid format (repeated flags)", 2) end
      local letter = nsub(fmt, last, last)
      if nfind(letter, "^%d") then nerror("invalid format (width or precision too long)", 2) end
      if nfind(letter, "^[diouxXceEfgG]") then
        local number = to_number(value)
        if not number then
          bad_argument(n, "format", "number expected, got " .. ntype(value))
        end
        out:put(nformat("%" .. flags .. size .. letter, number))
      elseif letter == "s" or letter == "q" then
        local text = to_string(value)
        if not text then
          bad_argument(n, "format", "string expected, got " .. ntype(value))
        end
        out:put(letter == "q" and quoted(text) or nformat("%" .. flags .. size .. "s", text))
      else
        nerror("invalid option '%" .. letter .. "' to 'format'", 2)
      end
      at = last + 1
    end
  end
end

local function format(...)
  local fmt, first = ...
  if ntype(fmt) == "string" then
    local wanted = formats[fmt]
    if wanted == nil then wanted = look_at_format(fmt) end
    local count = nselect("#", ...)
    if count == 2 and wanted == 1 and ntype(first) == "number" then return nformat(fmt, first) end
    if wanted and wanted < count then
      for i = 2, count do
        local kind = ntype((nselect(i, ...)))
        if kind ~= "string" and kind ~= "number" then return slow_format(...) end
      end
      return nformat(...)
    end
  end
  return slow_format(...)
end

string.find, string.match, string.gmatch, string.gfind, string.gsub =
  find, match, gmatch, gmatch, gsub
string.format = format

-- Functions in C are charged before they are called: a tail call leaves them the name and the place
-- of their caller, for their errors.

function string.rep(...)
  local s, n = ...
  if ntype(s) == "string" and ntype(n) == "number" and #s * n > 1000 then charge(#s * n) end
  if nselect("#", ...) <= 2 then return nrep(...) end
  return nrep(s, n)
end

for _, name in ipairs({ "upper", "lower", "reverse" }) do
  local native = string[name]
  string[name] = function(...)
    local s = ...
    if ntype(s) == "string" and #s > 1000 then charge(#s) end
    return native(...)
  end
end

-- There is nothing to load it with.
function string.dump(f)
  if ntype(f) ~= "function" then
    bad_argument(1, "dump", "function expected, got " .. ntype(f))
  end
  return "\27"
end

globals.string = readonly(string)
ngetmetatable("").__metatable = readonly({ __index = globals.string })

-- table, math, and what is left of the globals --------------------------------------------------

local ninsert, nremove, nsort = table.insert, table.remove, table.sort

local function less(a, b)
  return a < b
end

local tables = {
  foreach = table.foreach,
  foreachi = table.foreachi,
  getn = table.getn,
  maxn = table.maxn,
}

function tables.concat(...)
  local t = ...
  if ntype(t) == "table" then
    local cost = #t
    -- Many pieces are short: their number tells enough.
    if cost <= 100 then
      for i = 1, #t do
        local piece = nrawget(t, i)
        if ntype(piece) == "string" then cost = cost + #piece end
      end
    end
    if cost > 1000 then charge(cost) end
  end
  return nconcat(...)
end

-- Elements that an insertion may move. One at a position far below 1 would move that many.
local MAX_MOVED = 2 ^ 24

function tables.insert(...)
  local t, at = ...
  if behind[t] then nerror(READONLY, 0) end
  if nselect("#", ...) == 3 and ntype(t) == "table" then
    local position = to_number(at)
    if position then
      -- As in 5.1 a position beyond the end moves nothing, and leaves a gap.
      local moved = #t - position
      if not (moved <= MAX_MOVED and position <= INT_MAX) then
        bad_argument(2, "insert", "position out of bounds")
      end
      if moved > 1000 then charge(moved) end
    end
  end
  return ninsert(...)
end

function tables.remove(...)
  local t, at = ...
  if behind[t] then nerror(READONLY, 0) end
  if at ~= nil and ntype(t) == "table" and #t > 1000 then charge(#t) end
  return nremove(...)
end

-- A comparison in Lua keeps the clock running.
function tables.sort(t, ...)
  local order = ...
  if behind[t] then nerror(READONLY, 0) end
  if ntype(t) ~= "table" or (order ~= nil and ntype(order) ~= "function") then
    return nsort(t, ...)
  end
  if nested >= MAX_NESTED then nerror("C stack overflow", 2) end
  local before = nested
  nested = before + 1
  if order ~= nil then
    nsort(t, function(a, b) return (order(a, b)) end)
  elseif #t <= 200 then
    nsort(t)
  else
    nsort(t, less)
  end
  nested = before
end

function tables.setn()
  nerror("'setn' is obsolete", 2)
end

local random_state = host.random

local maths = {}
for name, value in npairs(math) do maths[name] = value end
maths.mod = math.fmod

function maths.log(...)
  return nlog((...))
end

function maths.random(...)
  local count = nselect("#", ...)
  local r = random_state()
  if count == 0 then return r end
  local low, high = 1, nil
  if count == 1 then
    high = integer_argument(1, "random", count, (...))
    if high < 1 then bad_argument(1, "random", "interval is empty") end
    return nfloor(r * high) + 1
  elseif count == 2 then
    local l, u = ...
    low = integer_argument(1, "random", count, l)
    high = integer_argument(2, "random", count, u)
    if low > high then bad_argument(2, "random", "interval is empty") end
    return nfloor(r * (high - low + 1)) + low
  end
  nerror("wrong number of arguments", 2)
end

function maths.randomseed(...)
  host.randomseed(integer_argument(1, "randomseed", nselect("#", ...), (...)))
end

local bits = {}
for name, value in npairs(bit) do bits[name] = value end

local nrunning, nyield = coroutine.running, coroutine.yield

local function yield(...)
  if nrunning() == nil then
    nerror("attempt to yield across metamethod/C-call boundary", 0)
  end
  return nyield(...)
end

local coroutines = {
  create = ncreate,
  resume = resume,
  running = coroutine.running,
  status = coroutine.status,
  wrap = wrap,
  yield = yield,
}

local function text_loader(source, name)
  local f, text = nload(source, name, "t", G)
  rearm()
  if f then return f end
  return nil, text
end

-- All pieces of a chunk. The interpreter would ask for them from within its parser.
local function read_all(reader)
  local pieces = {}
  while true do
    local piece = reader()
    if piece == nil or piece == "" then return nconcat(pieces) end
    piece = to_string(piece)
    if not piece then nerror("reader function must return a string", 0) end
    pieces[#pieces + 1] = piece
  end
end

globals.load = function(reader, name)
  if ntype(reader) ~= "function" then
    bad_argument(1, "load", "function expected, got " .. ntype(reader))
  end
  local before = nested
  local ok, source = npcall(read_all, reader)
  if not ok then
    nested = before
    return nil, caught(source)
  end
  return text_loader(source, name or "=(load)")
end

globals.loadstring = function(...)
  local source, name = ...
  local text = to_string(source)
  if not text then
    bad_argument(1, "loadstring",
      "string expected, got " .. typename(nselect("#", ...), 1, source))
  end
  return text_loader(text, name)
end

globals.setmetatable = function(t, ...)
  if behind[t] then nerror(READONLY, 0) end
  return nsetmetatable(t, ...)
end

globals.getmetatable = function(...)
  local t = ...
  local shown = metatable_of[t]
  if shown == nil then return ngetmetatable(...) end
  return shown or nil
end

globals.rawset = function(t, ...)
  if behind[t] then nerror(READONLY, 0) end
  return nrawset(t, ...)
end

globals.rawget = function(t, ...)
  return nrawget(behind[t] or t, ...)
end

globals.next = function(t, ...)
  return nnext(behind[t] or t, ...)
end

globals.pairs = function(...)
  local t = ...
  local real = behind[t]
  if real == nil then return npairs(...) end
  return function(_, k)
    return nnext(real, k)
  end, t, nil
end

globals.collectgarbage = function(what, ...)
  what = what or "collect"
  if what == "count" or what == "collect" or what == "step" then
    local answer = ncollect(what, ...)
    if what ~= "count" then rearm() end
    return answer
  end
  if what == "stop" or what == "restart" then return 0 end
  if what == "setpause" or what == "setstepmul" then return 200 end
  return ncollect(what, ...)
end

globals.assert = function(...)
  local value, message = ...
  if value then return ... end
  local count = nselect("#", ...)
  if count == 0 then bad_argument(1, "assert", "value expected") end
  local text = "assertion failed!"
  if message ~= nil then
    text = to_string(message)
    if not text then
      bad_argument(2, "assert", "string expected, got " .. ntype(message))
    end
  end
  nerror(text, 2)
end

globals.gcinfo = function()
  return nfloor(ncollect("count"))
end

globals.pcall, globals.xpcall = pcall, xpcall
globals._VERSION = "Lua 5.1"
globals._G = G
globals.error, globals.ipairs = error, ipairs
globals.rawequal, globals.select, globals.tonumber = rawequal, select, tonumber
globals.tostring, globals.type, globals.unpack = tostring, type, unpack
globals.table = readonly(tables)
globals.math = readonly(maths)
globals.bit = readonly(bits)
globals.coroutine = readonly(coroutines)
-- Valkey calls the same table `server`.
globals.redis = readonly(redis)
globals.server = globals.redis
globals.cjson = readonly(cjson)
globals.cmsgpack = readonly(cmsgpack)
globals.struct = readonly(struct)

-- Running ---------------------------------------------------------------------------------------

-- Functions of scripts by their number, and whether they are called with what they use most.
local compiled, nearer = {}, {}

local function compile(id, source, name, near)
  local f, text = nload(source, name, "t", G)
  if not f then return text end
  compiled[id], nearer[id] = f, near
end

local function forget(id)
  compiled[id], nearer[id] = nil, nil
end

-- Turns whatever was raised into text, source and line, at the place where it was raised.
local function handler(e)
  arm()
  local text, known
  local kind = ntype(e)
  if dead() then
    text = host.death()
    arm()
  elseif kind == "table" then
    text = e.err
    known = e.ignore_error_stats_update == true
    text = to_string(text)
    if text then text = cstring(text) end
  elseif kind == "userdata" then
    text = "ERR " .. ntostring(e)
  else
    text = "ERR " .. cstring(ntostring(e))
  end
  local source, line = where()
  arm()
  if text == "ERR stack overflow" and source then
    text = "ERR " .. nsub(source, 2) .. ":" .. line .. ": stack overflow"
  end
  return { text, source, line, known }
end

-- What `run` answers with: number, string, tree, graph, nil, false, true, error.
local R_NUMBER, R_STRING, R_TREE, R_GRAPH, R_NIL, R_FALSE, R_TRUE, R_ERROR, R_KNOWN_ERROR =
  0, 1, 2, 3, 4, 5, 6, 7, 8

local function finish(ok, result)
  local kind = ntype(result)
  if not ok then
    -- Nothing of the script runs any more, and memory may be all used up.
    host.disarm()
    if kind ~= "table" then
      if dead() then return R_ERROR, host.death() end
      return R_ERROR,
        "ERR Error running script " .. host.name() .. ", " .. nsub(ntostring(result), 1, 100)
    end
    local text = result[1] or "ERR unknown error"
    if result[2] then
      text = text .. " script: " .. host.name() .. ", on " .. result[2] .. ":" .. result[3] .. "."
    end
    return result[4] and R_KNOWN_ERROR or R_ERROR, text
  end
  if kind == "number" then return R_NUMBER, nil, result end
  if kind == "string" then return R_STRING, result end
  if kind == "boolean" then return result and R_TRUE or R_FALSE end
  if kind == "table" then
    local packed, graph = pack(result)
    return graph and R_GRAPH or R_TREE, packed
  end
  return R_NIL
end

local function run(id, packed)
  local f = compiled[id]
  local input = decode(packed)
  local keys, arguments = input[1], input[2]
  globals.KEYS, globals.ARGV = keys, arguments
  nested = 0
  if nearer[id] then return finish(nxpcall(f, handler, keys, arguments, call)) end
  return finish(nxpcall(f, handler))
end

-- Functions -------------------------------------------------------------------------------------

-- Functions of libraries by their number, and the number of the last.
local functions, last_function = {}, 0

-- What a library registers while it is loaded; nil at other times.
local registered

local FLAGS = {
  ["no-writes"] = true,
  ["allow-oom"] = true,
  ["allow-stale"] = true,
  ["no-cluster"] = true,
  ["allow-cross-slot-keys"] = true,
}

-- All names in a table of flags; nil if one of them is unknown.
local function read_flags(flags)
  local names, n = {}, 1
  while true do
    local name = flags[n]
    if name == nil then return names end
    name = to_string(name)
    name = name and string.lower(name)
    if not FLAGS[name] then return nil end
    names[n] = name
    n = n + 1
  end
end

local function named_arguments(given)
  if ntype(given) ~= "table" then
    raise("calling redis.register_function with a single argument is only applicable to Lua table"
      .. " (representing named arguments).")
  end
  local read = { flags = {} }
  local key, value = nnext(given)
  while key ~= nil do
    local word = to_string(key)
    if not word then
      raise("named argument key given to redis.register_function is not a string")
    end
    word = string.lower(word)
    if word == "function_name" then
      read.name = to_string(value)
      if not read.name then
        raise("function_name argument given to redis.register_function must be a string")
      end
    elseif word == "description" then
      read.description = to_string(value)
      if not read.description then
        raise("description argument given to redis.register_function must be a string")
      end
    elseif word == "callback" then
      if ntype(value) ~= "function" then
        raise("callback argument given to redis.register_function must be a function")
      end
      read.callback = value
    elseif word == "flags" then
      if ntype(value) ~= "table" then
        raise("flags argument to redis.register_function must be a table representing function"
          .. " flags")
      end
      read.flags = read_flags(value)
      if not read.flags then raise("unknown flag given") end
    else
      raise("unknown argument given to redis.register_function")
    end
    key, value = nnext(given, key)
  end
  if not read.name then raise("redis.register_function must get a function name argument") end
  if not read.callback then raise("redis.register_function must get a callback argument") end
  return read
end

local function positional_arguments(name, callback)
  name = to_string(name)
  if not name then raise("first argument to redis.register_function must be a string") end
  if ntype(callback) ~= "function" then
    raise("second argument to redis.register_function must be a function")
  end
  return { name = name, callback = callback, flags = {} }
end

local function register_function(...)
  if not registered then
    raise("redis.register_function can only be called on FUNCTION LOAD command")
  end
  local count = nselect("#", ...)
  if count < 1 or count > 2 then
    raise("wrong number of arguments to redis.register_function")
  end
  local read = count == 1 and named_arguments(...) or positional_arguments(...)
  if not nfind(read.name, "^[%w_]+$") then
    raise("Library names can only contain letters, numbers, or underscores(_) and must be at"
      .. " least one character long")
  end
  for i = 1, #registered do
    if registered[i].name == read.name then raise("Function already exists in the library") end
  end
  last_function = last_function + 1
  functions[last_function] = read.callback
  read.callback = nil
  read.id = last_function
  registered[#registered + 1] = read
end

-- What a library finds while it is loaded: next to nothing.
local loading = nsetmetatable({}, { __index = missing })
do
  local api = nsetmetatable({}, { __index = missing })
  api.register_function = register_function
  for _, name in ipairs({ "log", "LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING",
    "REDIS_VERSION", "REDIS_VERSION_NUM" }) do
    api[name] = redis[name]
  end
  loading.redis = readonly(api, readonly({ __index = missing }))
  loading.server = loading.redis
end

-- What a function finds when it is called: all that scripts find, but what only they can use.
local calling = nsetmetatable({}, { __index = missing })
do
  local api = {}
  for name, value in npairs(redis) do api[name] = value end
  api.breakpoint, api.debug, api.replicate_commands = nil, nil, nil
  for name, value in npairs(globals) do calling[name] = value end
  calling.redis = readonly(api)
  calling.server = calling.redis
end

-- The world of functions: what is behind it depends on whether one is loaded or called.
local F = {}
behind[F] = calling
metatable_of[F] = readonly({})
local world = { __index = calling, __newindex = deny }
nsetmetatable(F, world)

-- Loads a library. Answers with what it registered, packed, or with nil and the text of an error.
local function load_library(source, name)
  local f, text = nload(source, name, "t", F)
  if not f then return nil, "Error compiling function: " .. text end
  registered, world.__index = {}, loading
  nested = 0
  arm()
  local ok, e = npcall(f)
  host.disarm()
  local found = registered
  registered, world.__index = nil, calling
  if ok then return encode(found) end
  for i = 1, #found do functions[found[i].id] = nil end
  if dead() then
    text = "ERR FUNCTION LOAD timeout"
  elseif ntype(e) == "table" then
    text = to_string(e.err) or "ERR unknown error"
  else
    text = "ERR " .. ntostring(e)
  end
  return nil, "Error registering functions: " .. cstring(text)
end

local function run_function(id, packed)
  local f = functions[id]
  local input = decode(packed)
  nested = 0
  return finish(nxpcall(f, handler, input[1], input[2]))
end

local function forget_function(id)
  functions[id] = nil
end

return {
  run = run,
  compile = compile,
  forget = forget,
  load_library = load_library,
  run_function = run_function,
  forget_function = forget_function,
}
