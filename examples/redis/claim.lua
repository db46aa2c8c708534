-- Claims a job by the BridgeMQ v1 schema: the first of the first hundred in line that this worker may take.
--
-- KEYS   1 bridge:jobs:waiting   2 bridge:jobs:active   3 bridge:queues:paused
-- ARGV   1 id of the worker   2 its stacks   3 its capabilities   4 its regions (2 to 4: lists in JSON)
--        5 seconds the lock is held   6 the job types it runs (a list in JSON)
--        7 "bridge:jobs:data:"   8 "bridge:jobs:lock:"   9 "bridge:ratelimit:concurrent:"
-- returns the job as JSON, or false
--
-- It reads keys whose names it finds in the list, so it cannot declare them all: not for Redis Cluster.

-- Does a list of the job's target name one (or all) of what the worker has? An empty list asks for nothing.
local function fits(wanted, had, all)
  if type(wanted) ~= 'table' or #wanted == 0 then return true end
  local has, found = {}, 0
  for _, one in ipairs(had) do has[one] = true end
  for _, one in ipairs(wanted) do
    if has[one] then found = found + 1 end
  end
  if all then return found == #wanted end
  return found > 0
end

local stacks, capabilities, regions = cjson.decode(ARGV[2]), cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
local types = cjson.decode(ARGV[6])
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, 99)) do
  local text = redis.call('GET', ARGV[7] .. id)
  local job = text and cjson.decode(text)
  -- '-' marks a place from which Tidegate took a job; an id without data is another's to clean up.
  if job and fits(types, { job.type }) and redis.call('SISMEMBER', KEYS[3], job.type) == 0 then
    local target, counter = job.target or {}, ARGV[9] .. job.type
    local limit = type(job.rateLimit) == 'table' and tonumber(job.rateLimit.maxConcurrent)
    local free = not limit or tonumber(redis.call('GET', counter) or '0') < limit
    local mine
    if target.server and target.server ~= '' then
      mine = target.server == ARGV[1]
    else
      mine = fits(target.stack, stacks) and fits(target.region, regions)
        and fits(target.capabilities, capabilities, target.mode == 'all')
    end
    if free and mine and redis.call('SET', ARGV[8] .. id, ARGV[1], 'NX', 'EX', ARGV[5]) then
      redis.call('LREM', KEYS[1], 1, id)
      redis.call('SADD', KEYS[2], id)
      redis.call('INCR', counter)
      return text
    end
  end
end
return false
