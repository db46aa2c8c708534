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

