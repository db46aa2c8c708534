-- open_lanes() -- opens the queue, and reads the lanes that a script names first among `keys` and `rest`.
-- Answers the queue state, then what `read_lanes` answers.
-- uses: queue_open, read_lanes
-- reads: waiting, index, unindexed, now_ms, lanes, keys, rest
local function open_lanes()
  local queue_state = queue_open(waiting, index, unindexed, now_ms, {})
  return queue_state, read_lanes(tonumber(lanes), keys, rest)
end
