-- Values to and from Rust -----------------------------------------------------------------------

-- Packs what cannot be a tree in the wire format: all tables in a list, references between them.
-- The first table holds nothing but the value.
local function pack_graph(value)
  local number, list, queue = {}, {}, {}
  local function reference(v)
    local kind = ntype(v)
    if kind == "table" then
      local n = number[v]
      if not n then
        n = #queue + 1
        queue[n] = v
        number[v] = n
      end
      return { n }
    elseif kind == "function" or kind == "thread" or kind == "userdata" then
      if v == host.null then return v end
      return { 0, kind }
    end
    return v
  end
  reference({ value })
  local n = 1
  while queue[n] do
    local from, to = queue[n], {}
    local k, v = nnext(from)
    while k ~= nil do
      to[reference(k)] = reference(v)
      k, v = nnext(from, k)
    end
    list[n] = to
    n = n + 1
  end
  return encode(list)
end

-- Packs a value; true if as a graph.
local function pack(value)
  local ok, packed = npcall(encode, value)
  if ok then return packed, false end
  arm()
  if dead() then nerror(packed, 0) end
  return pack_graph(value), true
end

-- The value Rust packed: a tree, or a list of tables in which `{n}` stands for the nth.
local function unpack_value(packed, graph)
  local value = decode(packed)
  if not graph then return value end
  for _, t in npairs(value) do
    for k, v in npairs(t) do
      if ntype(v) == "table" then t[k] = value[v[1]] end
    end
  end
  return value[1]
end

