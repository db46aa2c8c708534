-- desk/count_since_report -- turn counts since the start of a program into counts since its last report.
--
-- KEYS   1 reports  hash  per series: start of the program, requests, then bucket:count of its response times
-- ARGV   1 keep_ms  2 most  3 ..series
-- REPLY  {'counted', then per series: requests, bucket:count …}
--
-- Keeps: a request is counted once, whichever instance a report reaches. A series comes as three arguments:
-- name, start, counts as they are stored. A later start, or counts that went down, is a restart: all of
-- its counts are new. A report of an earlier start comes too late and counts nothing. At most `most` series
-- are remembered; one more counts nothing, because it could not be told from its own next report.
local most = tonumber(most)

-- The numbers of 'requests bucket:count …'.
local function parse(counts)
  local requests = tonumber(string.match(counts, '^%d+')) or 0
  local buckets = {}
  for bucket, count in string.gmatch(counts, '(%d+):(%d+)') do
    buckets[bucket] = tonumber(count)
  end
  return requests, buckets
end

local known = redis.call('HLEN', reports)
local reply = {'counted'}
for index = series + 1, #ARGV, 3 do
  local name, start, counts = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  local stored = redis.call('HGET', reports, name)
  local old_start, old_counts = string.match(stored or '', '^(%d+) (.*)$')
  local requests, buckets = parse(counts)
  local counted = counts
  local remembered = true
  if old_start then
    local old_requests, old_buckets = parse(old_counts)
    if tonumber(start) < tonumber(old_start) then
      counted, remembered = '0', false
    elseif start == old_start and requests >= old_requests then
      local parts = {string.format('%.0f', requests - old_requests)}
      for bucket, count in pairs(buckets) do
        local more = count - (old_buckets[bucket] or 0)
        if more > 0 then parts[#parts + 1] = bucket .. ':' .. string.format('%.0f', more) end
      end
      counted = table.concat(parts, ' ')
    end
  elseif known >= most then
    counted, remembered = '0', false
  else
    known = known + 1
  end
  if remembered then redis.call('HSET', reports, name, start .. ' ' .. counts) end
  reply[#reply + 1] = counted
end
redis.call('PEXPIRE', reports, keep_ms)
return reply
