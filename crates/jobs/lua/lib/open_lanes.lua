-- open_lanes(count, keys, args) -- opens the queue for a script whose first keys are waiting, index and
-- unindexed, and whose first argument is now_ms, and reads the lanes it names. Answers the queue
-- state, then what `read_lanes` answers.
-- uses: queue_open, read_lanes
local function open_lanes(count, keys, args)
  local queue_state = queue_open(KEYS[1], KEYS[2], KEYS[3], ARGV[1], {})
  return queue_state, read_lanes(count, keys, args)
end
