-- score_at(positions, rank, id, ceiling, cursor): the score that puts `id`, which sorts behind every
-- older id, at `rank` (1 or more) of the line, and the highest score given out. `ceiling` is above all
-- scores. Without a score the work is not done: the third value is the cursor of the next call.
--
-- Scores are multiples of a half: doubles are exact at that step up to 2^52 µs, in the year 2112.
--   1. A free half above the one before is taken.
--   2. Without one, the newcomer takes the score of the one before: equal scores sort by id, and it
--      has the newest. Such a group of equals grows to 64.
--   3. Inside a group, or behind a full one, those from `rank` on move up, evenly and in their order,
--      over the smallest stretch of the line (32, 64, 128 …) a quarter of whose halves stays free.
-- Scores only ever grow, so whoever returns with an old score stands before all who were behind.
--
-- One call moves 1,000 at most, from the end of the stretch towards `rank`: the order is right after
-- each move, so others may come and go between two calls. Those from the score `cursor` on have moved.
-- uses: int
local function score_at(positions, rank, id, ceiling, cursor)
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
  local behind_rank = call('ZCARD', positions) - rank
  local width, count, top, free = 32, nil, nil, nil
  while true do
    if width < behind_rank then
      local next = call('ZRANGE', positions, int(rank + width), int(rank + width), 'WITHSCORES')
      count, top = width, tonumber(next[2])
    else
      count, top = behind_rank, math.max(ceiling, first + (behind_rank + 2) * 2 * step)
    end
    free = math.ceil((top - first) / step)
    if free * 3 >= (count + 1) * 4 then
      break
    end
    width = width * 2
  end
  local last = count
  if cursor then
    local below = call('ZCOUNT', positions, '-inf', '(' .. string.format('%.17g', cursor)) - rank
    if below > 0 and below < count then
      last = below
      -- What is above has moved, perhaps by another measure: nobody may pass it.
      local next = call('ZRANGE', positions, int(rank + last), int(rank + last), 'WITHSCORES')
      top = tonumber(next[2])
    end
  end
  local from = math.max(last - 1000, 0)
  local part = call('ZRANGE', positions, int(rank + from), int(rank + last - 1), 'WITHSCORES')
  local highest, above = first, top
  for i = last, from + 1, -1 do
    local old = tonumber(part[2 * (i - from)])
    local new = math.min(first + floor(i * free / (count + 1)) * step, above - step)
    if new > old then
      call('ZADD', positions, string.format('%.17g', new), part[2 * (i - from) - 1])
      highest = math.max(highest, new)
      above = new
    else
      above = old
    end
  end
  if from > 0 then
    return nil, highest, above
  end
  if above <= first then
    -- The line changed between two calls, and there is no room yet: from the end again.
    return nil, highest, nil
  end
  return first, highest
end
