-- finish(q, at) -- writes the results of jobs that succeeded, if they are still their worker's, from
-- the arguments that begin at `at`. Answers the numbers of the jobs that were not done, which are
-- another's by now, and whether other jobs wait for one that was. What is repeated counts as done.
--
-- `q` names the keys active, claims, leases, terms, held, finished, parents, settled, blocked,
-- processed, spent, cancelled and events, the channels done and wake, and prefix, now, result_ttl,
-- spent_ms and events_max. The arguments are, of each claim: its text, its type, keep, how many jobs
-- and how many results, then the ids, then the results: one for all, or one of each.
local function finish(q, at)
  local call = redis.call
  local LOCK, STATUS = q.prefix .. 'jobs:lock:', q.prefix .. 'jobs:status:'
  local RESULT = q.prefix .. 'jobs:result:'
  local now, ttl = q.now .. ' ', q.result_ttl
  local renewed = call('EXISTS', q.leases) == 1
  local lost, before, settled = {}, 0, false
  local statuses, locks, finished, count, ended, names, counts = {}, {}, {}, 0, 0, {}, {}
  while at < #ARGV do
    local text, kind, keep = ARGV[at], ARGV[at + 1], ARGV[at + 2] == '1'
    local jobs, results = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local from, to = at + 5, at + 4 + jobs
    local each, result = results > 1 and jobs or 0, ARGV[to + 1]
    -- Mostly all are held, and none is named twice: then the ids stay where they are.
    local ids, first, last = ARGV, from, to
    local held, all = call('HMGET', q.claims, spread(ARGV, from, to)), true
    for j = 1, jobs do
      if held[j] ~= text then
        all = false
        break
      end
    end
    if not all or call('HDEL', q.claims, spread(ARGV, from, to)) < jobs then
      local seen, own = {}, {}
      ids, first, last = {}, 1, 0
      for j = 1, jobs do
        local id = ARGV[at + 4 + j]
        local own_result = each > 0 and ARGV[to + j] or result
        if held[j] == text and not seen[id] then
          last = last + 1
          seen[id], ids[last], own[last] = true, id, own_result
        elseif not seen[id] and (held[j] or call('GET', RESULT .. id) ~= own_result) then
          lost[#lost + 1] = before + j
        end
      end
      if last > 0 then call('HDEL', q.claims, spread(ids)) end
      -- From here on the results stand behind the ids.
      for j = 1, last do ids[last + j] = own[j] end
      each = last
    end
    local done = last - first + 1
    if done > 0 then
      for j = first, last do
        local id = ids[j]
        count = count + 1
        -- With GET it answers nothing instead of a table that says OK.
        call('SET', RESULT .. id, each > 0 and ids[j + each] or result, 'GET', 'EX', ttl)
        locks[count] = LOCK .. id
        statuses[2 * count - 1], statuses[2 * count] = STATUS .. id, 'completed'
        if not keep then
          ended = ended + 1
          finished[ended] = now .. id
        end
      end
      call('SREM', q.active, spread(ids, first, last))
      local own = renewed and call('ZREM', q.leases, spread(ids, first, last)) or 0
      if own < done then part(q.terms, q.held, text, done - own) end
      if call('EXISTS', q.cancelled) == 1 then call('HDEL', q.cancelled, spread(ids, first, last)) end
      if call('EXISTS', q.parents) == 1 then
        settled = settle(q.parents, q.settled, { spread(ids, first, last) }) or settled
      end
      counts[kind] = (counts[kind] or 0) + done
      names[#names + 1] = table.concat(ids, '\n', first, last)
    end
    before, at = before + jobs, to + results + 1
  end
  if count > 0 then
    call('MSET', spread(statuses))
    call('DEL', spread(locks))
    if ended > 0 then call('LPUSH', q.finished, spread(finished)) end
    for kind, places in pairs(counts) do
      free(q.prefix .. 'ratelimit:concurrent:' .. kind, places, q.blocked, kind, q.wake)
    end
    call('INCRBY', q.processed, count)
    call('INCRBY', q.spent, q.spent_ms)
    local all = table.concat(names, '\n')
    call('PUBLISH', q.done, all)
    emit(q.events, q.events_max, 'completed', q.now, all)
  end
  return lost, settled
end
