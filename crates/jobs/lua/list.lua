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
local lanes, listed = read_lanes(tonumber(ARGV[2]), 1, 2), 0
for n = 1, #lanes do
  local first = redis.call('LINDEX', lanes[n].key, '0')
  if first then
    list_lane(KEYS[1], lanes[n], first, ARGV[1])
    listed = listed + 1
  end
end
return { 'listed', listed }
