-- The world of a script: Redis's globals, read-only, with no way out of them.
--
-- The parts are joined in this order into one chunk (see `prelude` in lua.rs), so that they share
-- their locals; each part uses only what stands before it.
--
--   base.lua       locals of the interpreter's own functions; read-only tables
--   errors.lua     errors as Lua 5.1 and Redis word them
--   limits.lua     time and stack spent inside functions in C
--   redis.lua      redis.call, redis.pcall, redis.log and the rest of the table `redis`
--   values.lua     packing values for Rust, and unpacking
--   cjson.lua      the library cjson
--   cmsgpack.lua   the library cmsgpack
--   struct.lua     the library struct
--   string.lua     string, with a pattern matcher that counts its steps
--   globals.lua    table, math, coroutine, and the remaining globals
--   run.lua        running a script; errors with source and line
--   functions.lua  libraries of FUNCTION and their functions
--
-- The chunk runs once per interpreter. `host` holds the functions written in Rust. They never raise:
-- they answer with a word about what happened, and errors are raised here, so that a script sees
-- plain Lua strings and tables. Those that call commands leave the memory limit as it was; the
-- others turn it off, and `arm`, which puts it back, is called after each of them and wherever an
-- error may be caught. Every function that catches errors (pcall, xpcall, coroutine.resume, load)
-- asks `dead` first: a script that was killed cannot catch that.

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

