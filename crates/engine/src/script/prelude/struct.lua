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

