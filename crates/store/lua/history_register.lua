-- store/history_register -- give each named series its number in the rows of the history.
--
-- KEYS   1 series  hash  name -> 'NUMBER KIND DAY': number, kind, day it was last written
-- ARGV   1 day  2 most  3 keep_days  4 ..names
-- REPLY  {'registered', then per name: its number, or -1 if there are too many}
--
-- Each name is two arguments: the name and its kind.
--
-- Keeps: a number belongs to one name for as long as a row with it can be there (keep_days).
-- Repeating changes nothing. The field '@next' counts the numbers given out.
local day, most, keep_days = tonumber(day), tonumber(most), tonumber(keep_days)
local reply = {'registered'}
local free
for at = names + 1, #ARGV, 2 do
  local name, kind = ARGV[at], ARGV[at + 1]
  local known = redis.call('HGET', series, name)
  local number, known_kind, known_day = string.match(known or '', '^(%d+) (%a) (%d+)$')
  number = tonumber(number)
  if not number then
    number = tonumber(redis.call('HGET', series, '@next')) or 0
    if number < most then
      redis.call('HSET', series, '@next', string.format('%.0f', number + 1))
    else
      if not free then
        free = {}
        local all = redis.call('HGETALL', series)
        for other = 1, #all, 2 do
          local old, _, seen = string.match(all[other + 1], '^(%d+) (%a) (%d+)$')
          if old and tonumber(seen) + keep_days < day then
            free[#free + 1] = {all[other], tonumber(old)}
          end
        end
      end
      local found = table.remove(free)
      number = found and found[2] or -1
      if found then redis.call('HDEL', series, found[1]) end
    end
  end
  if number >= 0 and (known_kind ~= kind or tonumber(known_day) ~= day) then
    redis.call('HSET', series, name, string.format('%.0f %s %.0f', number, kind, day))
  end
  reply[#reply + 1] = math.floor(number)
end
return reply
