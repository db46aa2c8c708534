-- free_slots(max_active, admitted, active): returns how many more may be admitted or active; max_active 0 = no limit.
-- uses: num
local function free_slots(max_active, admitted, active)
  local most = num(max_active, 0)
  if most == 0 then
    return 1000000000
  end
  return math.max(0, most - redis.call('ZCARD', admitted) - redis.call('SCARD', active))
end
