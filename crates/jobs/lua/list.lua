-- jobs/list -- lists lanes that hold jobs, as those of an earlier layout are not.
-- uses: list_lane, read_lanes
--
-- KEYS   1 index   hash  state of the index
--        2 ..keys        those of the lanes
-- ARGV   1 wake  2 lanes  3 ..rest
--        the lanes, as `read_lanes` reads them
-- REPLY  {'listed', how many}
--
-- Keeps: a lane without jobs stays unlisted. Repeating does no harm.
local lane_list, listed = read_lanes(tonumber(lanes), keys, rest), 0
for n = 1, #lane_list do
  local first = redis.call('LINDEX', lane_list[n].key, '0')
  if first then
    list_lane(index, lane_list[n], first, wake)
    listed = listed + 1
  end
end
return { 'listed', listed }
