-- add_units(key, at_ms, request_id, units) -- adds a member per unit and returns how many are new.
-- A request that is repeated after a lost reply names the same members, so it counts once.
local last_ms, last_score -- Most checks of a batch are of one moment.
local function add_units(key, at_ms, request_id, units)
  if at_ms ~= last_ms then last_ms, last_score = at_ms, string.format('%d', at_ms) end
  if units == 1 then return redis.call('ZADD', key, 'NX', last_score, request_id .. ':1') end
  local added, unpack = 0, unpack or table.unpack -- bounded: 500 units at a time
  for first = 1, units, 500 do
    local members = {}
    for unit = first, math.min(units, first + 499) do
      members[#members + 1] = last_score
      members[#members + 1] = request_id .. ':' .. string.format('%d', unit)
    end
    added = added + redis.call('ZADD', key, 'NX', unpack(members)) -- bounded: 500 units
  end
  return added
end
