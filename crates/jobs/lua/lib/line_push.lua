-- line_push(s, lanes, entries, wake) -- puts jobs in line: into the waiting list as v1 does, and into
-- the lane of their route.
--
-- `lanes` is a list of { key, registry, rid, priority, spec, server, mask }, where mask is what the
-- index said of the route, false when it does not know it; `entries` a list of id, lane number and
-- place, id, lane number and place, and so on, where place is 'back' or 'front' of the line, 'head'
-- for what goes before all others of its priority too, or 'listed' for what stands in line already.
-- A lane that was empty wakes the workers that wait for it.
local function line_push(s, lanes, entries, wake)
  if not entries[1] then return end
  local call = redis.call
  local back, front, backs, fronts, head = {}, nil, 0, 0, nil
  local seq, masks = s.seq + 0, nil
  local first = seq + 1
  for i = 1, #entries, 3 do
    local id, place = entries[i], entries[i + 2]
    local lane = lanes[entries[i + 1]]
    if place == 'head' then
      head = head or {}
      table.insert(head, 1, id)
      lane.first = lane.first or {}
      table.insert(lane.first, 1, 0)
      table.insert(lane.first, 1, id)
    else
      seq = seq + 1
      if place == 'front' then
        fronts = fronts + 1
        front = front or {}
        front[fronts] = id
      elseif place == 'back' then
        backs = backs + 1
        back[backs] = id
      end
      local list = lane.list
      if list then
        local n = #list
        list[n + 1], list[n + 2] = seq, id
      else
        lane.list = { seq, id }
      end
    end
  end
  s.seq = seq
  if head then
    front = front or {}
    for i = 1, #head do front[fronts + i] = head[i] end
    fronts = fronts + #head
  end
  if backs > 0 then
    local _, length = chunked('RPUSH', s.waiting, back)
    if 3 * backs == #entries then s.base = first - (length - backs) end
    if s.clean then s.tail = back[backs] end
    if length == backs then s.head = back[1] end
  end
  if fronts > 0 then
    local _, length = chunked('LPUSH', s.waiting, front)
    s.base = s.base - fronts
    -- The head mark moves only if nothing unknown lies behind it.
    if length == fronts or call('LINDEX', s.waiting, fronts) == s.head then
      s.head = front[fronts]
    end
    if length == fronts then s.tail = front[1] end
    if not s.clean then s.at = s.at + fronts end
  end
  for n = 1, #lanes do
    local lane = lanes[n]
    if lane.list then chunked('RPUSH', lane.key, lane.list) end
    if lane.first then chunked('LPUSH', lane.key, lane.first) end
    if lane.list or lane.first then
      local mask = masks and masks[lane.rid] or lane.mask
      if not mask then
        call('HSET', lane.registry, lane.rid, lane.spec)
        call('HINCRBY', s.index, 'v:' .. lane.server, '1')
        mask = 0
      end
      mask = tonumber(mask)
      local weight = weight(lane.priority)
      if mask % (2 * weight) < weight then
        mask = mask + weight
        call('PUBLISH', wake, lane.rid)
        local set = s.set
        set[#set + 1] = 'm:' .. lane.rid
        set[#set + 1] = mask
      end
      if lanes[2] then
        masks = masks or {}
        masks[lane.rid] = mask
      end
    end
  end
end
