-- queue_push(queue_state, lanes, entries, wake) -- puts jobs in line: into the waiting list as v1 does, and into
-- the lane of their route.
--
-- `lanes` is what `read_lanes` has read; `entries` a list of id, lane number and place, id, lane number
-- and place, and so on, where place is 'back' or 'front' of the line, 'head' for what goes before all
-- others of its priority too, or 'listed' for what stands in line already. A lane that was empty is
-- listed among those that hold jobs, and wakes the workers that wait for it; so is one that gets what
-- stands in line already, in case its entry was lost.
-- uses: chunked, list_lane
local function queue_push(queue_state, lanes, entries, wake)
  if not entries[1] then return end
  local call = redis.call
  local back, front, backs, fronts, head = {}, nil, 0, 0, nil
  local seq = queue_state.seq + 0
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
      else
        lane.again = true
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
  queue_state.seq = seq
  if head then
    front = front or {}
    for i = 1, #head do front[fronts + i] = head[i] end
    fronts = fronts + #head
  end
  if backs > 0 then
    local _, length = chunked('RPUSH', queue_state.waiting, back)
    if 3 * backs == #entries then queue_state.base = first - (length - backs) end
    if queue_state.clean then queue_state.tail = back[backs] end
    if length == backs then queue_state.head = back[1] end
  end
  if fronts > 0 then
    local _, length = chunked('LPUSH', queue_state.waiting, front)
    queue_state.base = queue_state.base - fronts
    -- The head mark moves only if nothing unknown lies behind it.
    if length == fronts or call('LINDEX', queue_state.waiting, fronts) == queue_state.head then
      queue_state.head = front[fronts]
    end
    if length == fronts then queue_state.tail = front[1] end
    if not queue_state.clean then queue_state.at = queue_state.at + fronts end
  end
  for n = 1, #lanes do
    local lane = lanes[n]
    local list, first = lane.list, lane.first
    if list or first then
      local added, length = 0, nil
      if list then
        added = #list
        local _, after = chunked('RPUSH', lane.key, list)
        length = after
      end
      if first then
        local _, after = chunked('LPUSH', lane.key, first)
        added, length = added + #first, after
      end
      if length == added or first or lane.again then
        local number = first and 0 or list[1]
        if lane.again and length ~= added then number = call('LINDEX', lane.key, '0') end
        list_lane(queue_state.index, lane, number, wake)
      end
    end
  end
end
