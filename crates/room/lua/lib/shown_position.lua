-- shown_position(positions, line, rank, total): the true position, from 1: one more than the number
-- who will be admitted before, if nobody enqueues or leaves. Caches the count of normal positions in
-- `line`.
-- uses: int
local function shown_position(positions, line, rank, total)
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
