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

-- The interpreter's own goes up to 254 digits, where Redis's ends at 8.
local ntohex, ntobit = bit.tohex, bit.tobit
function bits.tohex(...)
  local x, n = ...
  if ntype(n) == "number" then
    local digits = ntobit(n)
    if digits > 8 then return ntohex(x, 8) end
    if digits < -8 then return ntohex(x, -8) end
  end
  return ntohex(...)
end

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

