-- other(text) -- gives back.
local function other(text)
  return text
end
