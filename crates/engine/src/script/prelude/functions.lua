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
