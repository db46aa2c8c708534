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

