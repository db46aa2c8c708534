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

