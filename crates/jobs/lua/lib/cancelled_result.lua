-- cancelled_result(why, now) -- what is stored as the result of a job that was cancelled while it
-- ran, as JSON. Written by hand, so that no dialect of Lua needs a JSON library for it.
local function cancelled_result(why, now)
  local text = string.gsub(why, '[%c"\\]', function(letter)
    return string.format('\\u%04x', string.byte(letter))
  end)
  return '{"success":false,"error":{"message":"' .. text
    .. '","name":"Cancelled"},"completedAt":' .. now .. ',"processingTime":0}'
end
