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

