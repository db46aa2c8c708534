-- Runs scripts in Lua 5.4 for the proxy in dragonfly.rs, which is at the other end of both pipes.
--
-- in   compile <source>                      out  ok | error <text>
-- in   run <source> <keys> <args>            out  return <reply>, after any number of
--                                            out  call <words>, each answered by
-- in   n0 | i<number> | b<length> | s<length> | e<length> | a<count>, with bytes or elements after it

-- Reading no bytes would wait for the next one, to tell whether the input has ended.
local function read_bytes(count) return count > 0 and io.read(count) or '' end

local function read_text() return read_bytes(tonumber(io.read('l'))) end

local function write_text(text) io.write(#text, '\n', text) end

local function read_list()
  local list = {}
  for i = 1, tonumber(io.read('l')) do list[i] = read_text() end
  return list
end

local function read_answer()
  local line = io.read('l')
  local kind, number = line:sub(1, 1), math.tointeger(line:sub(2))
  if kind == 'n' then return false end
  if kind == 'i' then return number end
  if kind == 'b' then return read_bytes(number) end
  if kind == 's' then return { ok = read_bytes(number) } end
  if kind == 'e' then return { err = read_bytes(number) } end
  local list = {}
  for i = 1, number do list[i] = read_answer() end
  return list
end

local function to_word(value)
  if math.type(value) == 'integer' then return string.format('%d', value) end
  if math.type(value) == 'float' then return string.format('%.17g', value) end
  if type(value) == 'string' then return value end
  error('Lua redis() command arguments must be strings or integers', 0)
end

local function pcall_server(...)
  local words = {}
  for i = 1, select('#', ...) do words[i] = to_word((select(i, ...))) end
  io.write('call\n', #words, '\n')
  for _, word in ipairs(words) do write_text(word) end
  io.flush()
  return read_answer()
end

local function call_server(...)
  local answer = pcall_server(...)
  if type(answer) == 'table' and answer.err then error(answer, 0) end
  return answer
end

local function to_reply(value)
  local kind = type(value)
  if kind == 'string' then return '$' .. #value .. '\r\n' .. value .. '\r\n' end
  if kind == 'boolean' then return value and ':1\r\n' or '$-1\r\n' end
  if math.type(value) == 'integer' then return ':' .. value .. '\r\n' end
  if math.type(value) == 'float' then
    return string.format(':%d\r\n', value < 0 and math.ceil(value) or math.floor(value))
  end
  if kind ~= 'table' then return '$-1\r\n' end
  if value.err then return '-' .. value.err:gsub('[\r\n]', ' ') .. '\r\n' end
  if value.ok then return '+' .. value.ok .. '\r\n' end
  local parts = {}
  while value[#parts + 1] ~= nil do parts[#parts + 1] = to_reply(value[#parts + 1]) end
  return '*' .. #parts .. '\r\n' .. table.concat(parts)
end

local function environment(keys, args)
  local env = { KEYS = keys, ARGV = args }
  for _, name in ipairs({ 'assert', 'error', 'ipairs', 'math', 'next', 'pairs', 'pcall', 'rawequal',
    'rawget', 'rawset', 'select', 'setmetatable', 'getmetatable', 'string', 'table', 'tonumber',
    'tostring', 'type', 'xpcall' }) do
    env[name] = _G[name]
  end
  env.redis = {
    call = call_server,
    pcall = pcall_server,
    error_reply = function(text) return { err = text } end,
    status_reply = function(text) return { ok = text } end,
  }
  return env
end

while true do
  local verb = io.read('l')
  if not verb then return end
  local source = read_text()
  if verb == 'compile' then
    local chunk, fault = load(source, '=user_script', 't', {})
    if chunk then io.write('ok\n') else io.write('error\n') write_text(fault) end
  else
    local keys, args = read_list(), read_list()
    local chunk, fault = load(source, '=user_script', 't', environment(keys, args))
    local done, result = false, fault
    if chunk then done, result = pcall(chunk) end
    if not done and type(result) ~= 'table' then result = { err = 'ERR ' .. tostring(result) } end
    io.write('return\n')
    write_text(to_reply(result))
  end
  io.flush()
end
