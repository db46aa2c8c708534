-- mark_parents(parents, settled, ids) -- notes which of the ended jobs others wait for, and says whether
-- there is one.
-- uses: chunked
local function mark_parents(parents, settled, ids)
  local is, any = chunked('SMISMEMBER', parents, ids), false
  for i = 1, #ids do
    if is[i] == 1 then
      redis.call('RPUSH', settled, ids[i])
      any = true
    end
  end
  return any
end
