-- address_limit(max_active, setting): sessions one address may have at once; 0 = no limit. Without
-- a setting: a tenth of max_active, but up to 20 as long as that is no more than half of it.
-- uses: num
local function address_limit(max_active, setting)
  if setting and setting ~= '' then
    return num(setting, 0)
  end
  local most = num(max_active, 0)
  return math.max(math.ceil(most / 10), math.min(20, math.ceil(most / 2)))
end
