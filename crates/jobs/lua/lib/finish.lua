-- finish(more, at, ttl, done, wake, spent_ms) -- writes the results of jobs that succeeded, if they
-- are still their worker's and have not run longer than they may. Answers the numbers of the jobs that were not done, which are another's
-- by now, and whether other jobs wait for one that was. What is repeated counts as done.
--
-- KEYS 1 to 6 are active, claims, claim_leases, claim_counts, events and parked, and from `more` on leases,
-- finished, parents, settled, processed, spent, cancelled and deadlines; ARGV 1 to 3 are now_ms, prefix and
-- events_max. From `at` on the arguments are, of each claim: its text, its type, keep, how many jobs
-- and how many results, then the ids, then the results: one for all, or one of each.
-- uses: chunked, emit, mark_parents, release_slots, release_term
local function finish(more, at, ttl, done, wake, spent_ms)
  local call, now, prefix = redis.call, ARGV[1] .. ' ', ARGV[2]
  local claims, leases, cancelled = KEYS[2], KEYS[more], KEYS[more + 6]
  local parents, parked, deadlines = KEYS[more + 2], KEYS[6], KEYS[more + 7]
  -- Nearly always there is none of these.
  local special = call('EXISTS', leases, cancelled, parents, parked, deadlines) > 0
  local lost, before, settled = {}, 0, false
  local statuses, locks, finished, names = { 0, 0 }, { 0 }, { 0 }, nil
  local count, ended, counts = 0, 0, {}
  while at < #ARGV do
    local text, job_type, keep = ARGV[at], ARGV[at + 1], ARGV[at + 2] == '1'
    local jobs, results = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local from, to = at + 5, at + 4 + jobs
    local each, result = results > 1 and jobs or 0, ARGV[to + 1]
    -- Mostly all are held, and none is named twice: then the ids stay where they are.
    local ids, first, last = ARGV, from, to
    local held, all = chunked('HMGET', claims, ARGV, from, to), true
    for j = 1, special and jobs or 0 do
      local deadline = call('ZSCORE', deadlines, ARGV[at + 4 + j])
      if deadline and held[j] == text and tonumber(deadline) <= tonumber(ARGV[1]) then held[j] = '' end
    end
    for j = 1, jobs do
      if held[j] ~= text then
        all = false
        break
      end
    end
    if not all or chunked('HDEL', claims, ARGV, from, to) < jobs then
      local seen, own = {}, {}
      ids, first, last = {}, 1, 0
      for j = 1, jobs do
        local id = ARGV[at + 4 + j]
        local own_result = each > 0 and ARGV[to + j] or result
        if held[j] == text and not seen[id] then
          last = last + 1
          seen[id], ids[last], own[last] = true, id, own_result
        elseif not seen[id] and (held[j] or call('GET', prefix .. 'jobs:result:' .. id) ~= own_result) then
          lost[#lost + 1] = before + j
        end
      end
      if last > 0 then chunked('HDEL', claims, ids, 1, last) end
      -- From here on the results stand behind the ids.
      for j = 1, last do ids[last + j] = own[j] end
      each = last
    end
    local taken = last - first + 1
    if taken > 0 then
      local LOCK, STATUS, RESULT = prefix .. 'jobs:lock:', prefix .. 'jobs:status:', prefix .. 'jobs:result:'
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
      chunked('SREM', KEYS[1], ids, first, last)
      local own = 0
      if special then
        own = chunked('ZREM', leases, ids, first, last)
        chunked('HDEL', cancelled, ids, first, last)
        chunked('ZREM', deadlines, ids, first, last)
        local names_of = {}
        for j = first, last do names_of[j - first + 1] = ids[j] end
        settled = mark_parents(parents, KEYS[more + 3], names_of) or settled
      end
      if own < taken then release_term(KEYS[3], KEYS[4], text, taken - own) end
      counts[job_type] = (counts[job_type] or 0) + taken
      local list = taken == 1 and ids[first] or table.concat(ids, '\n', first, last)
      names = names and names .. '\n' .. list or list
    end
    before, at = before + jobs, to + results + 1
  end
  if count > 0 then
    chunked('MSET', nil, statuses)
    chunked('DEL', nil, locks)
    if ended > 0 then chunked('LPUSH', KEYS[more + 1], finished) end
    for job_type, places in pairs(counts) do
      release_slots(prefix .. 'ratelimit:concurrent:' .. job_type, places, special and parked, job_type, wake)
    end
    call('INCRBY', KEYS[more + 4], count == 1 and '1' or count)
    if spent_ms ~= '0' then call('INCRBY', KEYS[more + 5], spent_ms) end
    call('PUBLISH', done, names)
    emit(KEYS[5], ARGV[3], 'completed', ARGV[1], names)
  end
  return lost, settled
end
