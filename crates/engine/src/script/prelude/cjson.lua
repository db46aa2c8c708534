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

