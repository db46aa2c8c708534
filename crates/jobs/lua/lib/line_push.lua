-- line_push(s, lanes, entries, wake) -- puts jobs in line: into the waiting list as v1 does, and into
-- the lane of their route.
--
-- `lanes` is a list of { key, registry, rid, priority, spec, server, mask }, where mask is what the
-- index said of the route, false when it does not know it; `entries` a list of { id, lane number,
-- place }, where place is 'back' or 'front' of the line, 'head' for what goes before all others of
-- its priority too, or 'listed' for what stands in line already.
-- A lane that was empty wakes the workers that wait for it.
local function line_push(s, lanes, entries, wake)
  if #entries == 0 then return end
  local back, front, head, by_lane, masks = {}, {}, {}, {}, {}
  local first = s.seq + 1
  for i = 1, #entries do
    local id, n = entries[i][1], entries[i][2]
    local place = entries[i][3]
    local list = by_lane[n]
    if not list then
      list = { head = {} }
      by_lane[n] = list
    end
    if place == 'head' then
      table.insert(head, 1, id)
      table.insert(list.head, 1, 0)
      table.insert(list.head, 1, id)
    else
      s.seq = s.seq + 1
      if place == 'front' then
        front[#front + 1] = id
      elseif place == 'back' then
        back[#back + 1] = id
      end
      list[#list + 1] = s.seq
      list[#list + 1] = id
    end
  end
  for i = 1, #head do front[#front + 1] = head[i] end
  if #back > 0 then
    local length = redis.call('RPUSH', s.waiting, spread(back))
    if #back == #entries then s.base = first - (length - #back) end
    if s.clean then s.tail = back[#back] end
    if length == #back then s.head = back[1] end
  end
  if #front > 0 then
    local length = redis.call('LPUSH', s.waiting, spread(front))
    s.base = s.base - #front
    -- The head mark moves only if nothing unknown lies behind it.
    if length == #front or redis.call('LINDEX', s.waiting, #front) == s.head then
      s.head = front[#front]
    end
    if length == #front then s.tail = front[1] end
    if not s.clean then s.at = s.at + #front end
  end
  for n, list in pairs(by_lane) do
    local lane = lanes[n]
    if #list > 0 then redis.call('RPUSH', lane.key, spread(list)) end
    if #list.head > 0 then redis.call('LPUSH', lane.key, spread(list.head)) end
    local mask = masks[lane.rid]
    if mask == nil then mask = lane.mask end
    if not mask then
      redis.call('HSET', lane.registry, lane.rid, lane.spec)
      redis.call('HINCRBY', s.index, 'v:' .. lane.server, 1)
      mask = 0
    end
    mask = tonumber(mask)
    local weight = weight(lane.priority)
    if mask % (2 * weight) < weight then
      mask = mask + weight
      redis.call('PUBLISH', wake, lane.rid)
      s.set[#s.set + 1] = 'm:' .. lane.rid
      s.set[#s.set + 1] = mask
    end
    masks[lane.rid] = mask
  end
end
