-- score_at(positions, rank, id, ceiling): the score that puts `id`, which sorts behind every older id,
-- at `rank` (1 or more) of the line, and the highest score given out. `ceiling` is above all scores.
--
-- Scores are multiples of a half: doubles are exact at that step up to 2^52 µs, in the year 2112.
--   1. A free half above the one before is taken.
--   2. Without one, the newcomer takes the score of the one before: equal scores sort by id, and it
--      has the newest. Such a group of equals grows to 64.
--   3. Inside a group, or behind a full one, those from `rank` on move up, evenly and in their order,
--      over the smallest stretch of the line (32, 64, 128 …) a quarter of whose halves stays free.
-- Scores only ever grow, so whoever returns with an old score stands before all who were behind.
local function score_at(positions, rank, id, ceiling)
  local call, floor = redis.call, math.floor
  local step = 0.5
  local near = call('ZRANGE', positions, int(rank - 1), int(rank), 'WITHSCORES')
  local before = tonumber(near[2])
  local first = floor(before / step) * step + step
  local behind = near[4] and tonumber(near[4]) or ceiling
  if first < behind then
    return first, first
  end
  if before < behind and near[1] < id then
    local exact = string.format('%.17g', before)
    if call('ZCOUNT', positions, exact, exact) < 64 then
      return before, before
    end
  end
  local width, part, count, top, free = 32, nil, nil, nil, nil
  while true do
    part = call('ZRANGE', positions, int(rank), int(rank + width), 'WITHSCORES')
    count = #part / 2
    if count > width then
      count, top = width, tonumber(part[2 * width + 2])
    else
      top = math.max(ceiling, first + (count + 2) * 2 * step)
    end
    free = math.ceil((top - first) / step)
    if free * 3 >= (count + 1) * 4 then
      break
    end
    width = width * 2
  end
  local highest = first
  for i = 1, count do
    local old = tonumber(part[2 * i])
    local new = first + floor(i * free / (count + 1)) * step
    if new > old then
      call('ZADD', positions, string.format('%.17g', new), part[2 * i - 1])
      highest = math.max(highest, new)
    end
  end
  return first, highest
end
