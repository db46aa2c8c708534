-- read_lanes(count, keys, args) -- reads the lanes that a call names, after that many keys and
-- arguments. Answers the lanes, and how many keys and arguments lie before what follows them.
--
-- Of each lane the keys are the lane, and of each of its pools the lanes that hold jobs, those of
-- the type, and the registry; the arguments are priority, member, how many pools, and of each pool
-- what is published when it has a job, its entry in the registry, and the field of the index that
-- counts such entries, '' for a pool that everybody knows.
local function read_lanes(count, keys, args)
  local lanes = {}
  for n = 1, count do
    local pools = tonumber(ARGV[args + 3])
    lanes[n] = { key = KEYS[keys + 1], keys = keys + 1, args = args + 3, pools = pools,
      priority = ARGV[args + 1], member = ARGV[args + 2], list = false, again = false }
    keys, args = keys + 1 + 3 * pools, args + 3 + 3 * pools
  end
  return lanes, keys, args
end
