-- ready_sets(limit, has_own) -- reads the sorted sets of lanes that the worker may claim from,
-- each with its first lanes. Answers the sets, how many they are, and how many lanes are read at a time.
--
-- `pools` and `types` say how many there are, `rest` are the pools, then the types. The first pool is of jobs that name this worker; `has_own` is false if it never had any. A worker that
-- names many types reads the whole set of a pool if that holds few lanes, otherwise the set of each
-- type.
-- uses: rank
-- reads: prefix, pools, types, rest, READY_KEY, KEY_SEPARATOR
local function ready_sets(limit, has_own)
  local call = redis.call
  local pools, types = tonumber(pools), tonumber(types)
  local sets, count, page = {}, 0, limit + 3
  if page > 67 then page = 67 end
  local function add(pool, key, list, whole)
    local score = list[2] and tonumber(list[2])
    if score and score < PARKED then
      count = count + 1
      sets[count] = { pool = pool, key = key, list = list, at = 1, from = page, score = score,
        whole = whole or not list[2 * page] }
    end
  end
  for n = has_own and 1 or 2, pools do
    local pool = ARGV[rest + n]
    local key, few = prefix .. READY_KEY .. pool, nil
    if types == 0 then
      add(pool, key, call('ZRANGE', key, '0', page - 1, 'WITHSCORES'), false)
    else
      if types > 3 then
        local bound = 2 * types + 8
        if bound > 64 then bound = 64 end
        few = call('ZRANGE', key, '0', bound, 'WITHSCORES')
        if few[2 * bound + 1] then few = nil end
      end
      if few then
        local named, own = {}, {}
        for t = 1, types do named[ARGV[rest + pools + t]] = true end
        for i = 1, #few, 2 do
          if named[string.match(few[i], '^%w+ %d+ %d* %d* (.*)$')] then
            local m = #own
            own[m + 1], own[m + 2] = few[i], few[i + 1]
          end
        end
        add(pool, key, own, true)
      else
        for t = 1, types do
          local typed = key .. KEY_SEPARATOR .. ARGV[rest + pools + t]
          add(pool, typed, call('ZRANGE', typed, '0', page - 1, 'WITHSCORES'), false)
        end
      end
    end
  end
  return sets, count, page
end
