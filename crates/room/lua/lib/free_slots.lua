-- free_slots(max_active, claims, active): how many more may be admitted or active; 0 = no limit.
local function free_slots(max_active, claims, active)
  local most = num(max_active, 0)
  if most == 0 then
    return 1000000000
  end
  return math.max(0, most - redis.call('ZCARD', claims) - redis.call('SCARD', active))
end
