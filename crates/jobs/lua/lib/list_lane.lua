-- list_lane(index, lane, number, wake) -- lists a lane among those that hold jobs, in each of its
-- pools, by the number of its first job, and wakes the workers that wait for it.
-- uses: rank
local function list_lane(index, lane, number, wake)
  local call, member, score = redis.call, lane.member, rank(lane.priority, number)
  for n = 1, lane.pools do
    local key, at = lane.keys + 3 * n - 3, lane.args + 3 * n - 3
    call('ZADD', KEYS[key + 1], score, member)
    call('ZADD', KEYS[key + 2], score, member)
    local field, entry = ARGV[at + 3], ARGV[at + 2]
    if field ~= '' and not call('ZSCORE', KEYS[key + 3], entry) then
      call('ZADD', KEYS[key + 3], call('HINCRBY', index, field, '1'), entry)
    end
    call('PUBLISH', wake, ARGV[at + 1])
  end
end
