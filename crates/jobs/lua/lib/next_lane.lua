-- next_lane(set, page) -- takes the best lane off a set of `ready_sets`, and reads on when the
-- lanes that were read are used up.
-- uses: rank
-- reads: prefix, LANE_KEY, KEY_SEPARATOR
local function next_lane(set, page)
  local list, at = set.list, set.at
  local member, score = list[at], set.score
  at = at + 2
  if not list[at] and not set.whole then
    list, at = redis.call('ZRANGE', set.key, set.from, set.from + page - 1, 'WITHSCORES'), 1
    set.list, set.from, set.whole = list, set.from + page, not list[2 * page]
  end
  set.at, set.score = at, list[at] and tonumber(list[at + 1])
  if set.score and set.score >= PARKED then set.score = nil end
  local rid, priority, concurrent, minute, job_type =
    string.match(member, '^(%w+) (%d+) (%d*) (%d*) (.*)$')
  return { key = prefix .. LANE_KEY .. rid .. KEY_SEPARATOR .. priority, member = member,
    job_type = job_type, concurrent = concurrent, minute = minute, pool = set.pool,
    limited = concurrent ~= '' or minute ~= '', floor = (10 - priority) * 1e14,
    listed = score, score = score, at = 1, list = false, asked = 0, back = false,
    due = false }
end
