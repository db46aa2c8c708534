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

