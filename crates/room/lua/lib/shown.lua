-- shown(positions, line, rank, total): the true position, from 1: how many will be admitted
-- before, if nobody joins or leaves, and one. A line counts who is normal in it only once.
local function shown(positions, line, rank, total)
  if line.share == 0 then
    return rank + 1
  end
  local normal = line.count or redis.call('ZCOUNT', positions, int(line.normal), '+inf')
  line.count = normal
  local higher = total - normal
  local run = line.share - 1
  local first = run - line.since
  if rank < higher then
    if rank < first then
      return rank + 1
    end
    return rank + 1 + math.min(normal, 1 + math.floor((rank - first) / run))
  end
  local before = rank - higher
  return before + 1 + math.min(higher, first + before * run)
end
