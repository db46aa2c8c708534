-- finish(at, ttl, done_channel, wake_channel, total_ms) -- writes the results of jobs that succeeded, if
-- they are still their worker's and have not run longer than they may. Answers the numbers of the jobs
-- that were not done, which are another's by now, and whether other jobs wait for one that was. What is
-- repeated counts as done; its number is negative among them.
--
-- From `at` on the arguments are, of each claim: its text, its type, keep, how many jobs and how many
-- results, then the ids, then the results: one for all, or one of each.
-- uses: chunked, emit, mark_parents, release_slots, release_term
-- reads: active, claims, claim_leases, claim_counts, events, parked, leases, finished, parents,
--        settled, processed, spent, cancelled, deadlines, now_ms, prefix, events_max, LOCK_KEY,
--        STATUS_KEY, RESULT_KEY, RUNNING_KEY, ATTEMPT_KEY
local function finish(at, ttl, done_channel, wake_channel, total_ms)
  local call, now = redis.call, now_ms .. ' '
  -- Nearly always there is none of these.
  local special = call('EXISTS', leases, cancelled, parents, parked, deadlines) > 0
  local lost, before, any_settled = {}, 0, false
  local statuses, locks, entries, names = { 0, 0, 0, 0 }, { 0 }, { 0 }, nil
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
      if deadline and held[j] == text and tonumber(deadline) <= tonumber(now_ms) then held[j] = '' end
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
        else
          local repeated = seen[id] or (not held[j] and call('GET', prefix .. RESULT_KEY .. id) == own_result)
          lost[#lost + 1] = repeated and -(before + j) or before + j
        end
      end
      if last > 0 then chunked('HDEL', claims, ids, 1, last) end
      -- From here on the results stand behind the ids.
      for j = 1, last do ids[last + j] = own[j] end
      each = last
    end
    local taken = last - first + 1
    if taken > 0 then
      local lock, status, result_key = prefix .. LOCK_KEY, prefix .. STATUS_KEY, prefix .. RESULT_KEY
      local attempt = prefix .. ATTEMPT_KEY
      for j = first, last do
        local id = ids[j]
        count = count + 1
        -- With GET it answers nothing instead of a table that says OK.
        call('SET', result_key .. id, each > 0 and ids[j + each] or result, 'GET', 'EX', ttl)
        locks[count] = lock .. id
        local pair = 4 * count
        statuses[pair - 3], statuses[pair - 2] = status .. id, 'completed'
        statuses[pair - 1], statuses[pair] = attempt .. id, text
        if not keep then
          ended = ended + 1
          entries[ended] = now .. id
        end
      end
      chunked('SREM', active, ids, first, last)
      local own = 0
      if special then
        own = chunked('ZREM', leases, ids, first, last)
        chunked('HDEL', cancelled, ids, first, last)
        chunked('ZREM', deadlines, ids, first, last)
        local names_of = {}
        for j = first, last do names_of[j - first + 1] = ids[j] end
        any_settled = mark_parents(parents, settled, names_of) or any_settled
      end
      if own < taken then release_term(claim_leases, claim_counts, text, taken - own) end
      counts[job_type] = (counts[job_type] or 0) + taken
      local list = taken == 1 and ids[first] or table.concat(ids, '\n', first, last)
      names = names and names .. '\n' .. list or list
    end
    before, at = before + jobs, to + results + 1
  end
  if count > 0 then
    chunked('MSET', nil, statuses)
    chunked('DEL', nil, locks)
    if ended > 0 then chunked('LPUSH', finished, entries) end
    for job_type, places in pairs(counts) do
      release_slots(prefix .. RUNNING_KEY .. job_type, places, special and parked, job_type, wake_channel)
    end
    call('INCRBY', processed, count == 1 and '1' or count)
    if total_ms ~= '0' then call('INCRBY', spent, total_ms) end
    call('PUBLISH', done_channel, names)
    emit(events, events_max, 'completed', now_ms, names)
  end
  return lost, any_settled
end
