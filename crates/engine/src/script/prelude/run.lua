-- Running ---------------------------------------------------------------------------------------

-- Functions of scripts by their number, and whether they are called with what they use most.
local compiled, nearer = {}, {}

local function compile(id, source, name, near)
  local f, text = nload(source, name, "t", G)
  if not f then return text end
  compiled[id], nearer[id] = f, near
end

local function forget(id)
  compiled[id], nearer[id] = nil, nil
end

-- Turns whatever was raised into text, source and line, at the place where it was raised.
local function handler(e)
  arm()
  local text, known
  local kind = ntype(e)
  if dead() then
    text = host.death()
    arm()
  elseif kind == "table" then
    text = e.err
    known = e.ignore_error_stats_update == true
    text = to_string(text)
    if text then text = cstring(text) end
  elseif kind == "userdata" then
    text = "ERR " .. ntostring(e)
  else
    text = "ERR " .. cstring(ntostring(e))
  end
  local source, line = where()
  arm()
  if text == "ERR stack overflow" and source then
    text = "ERR " .. nsub(source, 2) .. ":" .. line .. ": stack overflow"
  end
  return { text, source, line, known }
end

-- What `run` answers with: number, string, tree, graph, nil, false, true, error.
local R_NUMBER, R_STRING, R_TREE, R_GRAPH, R_NIL, R_FALSE, R_TRUE, R_ERROR, R_KNOWN_ERROR =
  0, 1, 2, 3, 4, 5, 6, 7, 8

local function finish(ok, result)
  local kind = ntype(result)
  if not ok then
    -- Nothing of the script runs any more, and memory may be all used up.
    host.disarm()
    if kind ~= "table" then
      if dead() then return R_ERROR, host.death() end
      return R_ERROR,
        "ERR Error running script " .. host.name() .. ", " .. nsub(ntostring(result), 1, 100)
    end
    local text = result[1] or "ERR unknown error"
    if result[2] then
      text = text .. " script: " .. host.name() .. ", on " .. result[2] .. ":" .. result[3] .. "."
    end
    return result[4] and R_KNOWN_ERROR or R_ERROR, text
  end
  if kind == "number" then return R_NUMBER, nil, result end
  if kind == "string" then return R_STRING, result end
  if kind == "boolean" then return result and R_TRUE or R_FALSE end
  if kind == "table" then
    local packed, graph = pack(result)
    return graph and R_GRAPH or R_TREE, packed
  end
  return R_NIL
end

local function run(id, packed)
  local f = compiled[id]
  local input = decode(packed)
  local keys, arguments = input[1], input[2]
  globals.KEYS, globals.ARGV = keys, arguments
  nested = 0
  if nearer[id] then return finish(nxpcall(f, handler, keys, arguments, call)) end
  return finish(nxpcall(f, handler))
end

