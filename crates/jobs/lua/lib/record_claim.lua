-- record_claim(reply, round) -- writes down that the jobs of a round, locked already, are claimed by the
-- worker under one term, and adds them to the reply. `started` and `per_minute` count them per type; a
-- job that was deleted is taken out of all of these.
-- uses: chunked, count_starts, emit
-- reads: active, claims, claim_leases, claim_counts, events, now_ms, prefix, events_max, worker_id,
--        request, lease_until_ms, request_slot, DATA_KEY, STATUS_KEY, LOCK_KEY
local function record_claim(reply, round)
  local call, queue_state, ids, job_types = redis.call, round.queue_state, round.ids, round.job_types
  local started, per_minute = round.limits.started, round.per_minute
  local count, keys = #ids, { 0 }
  for i = 1, count do keys[i] = prefix .. DATA_KEY .. ids[i] end
  local data = chunked('MGET', nil, keys)
  for i = count, 1, -1 do
    if not data[i] then
      -- The job was deleted; only its id was still waiting.
      call('DEL', prefix .. LOCK_KEY .. ids[i])
      started[job_types[i]] = started[job_types[i]] - 1
      table.remove(ids, i)
      table.remove(job_types, i)
      table.remove(data, i)
      count = count - 1
    end
  end
  if count == 0 then return end

  -- One token for all of a call: a fence, which grows from claim to claim. It is the time of the
  -- claim in microseconds, or one more than the token before it, and so tells since when a job runs.
  local token = string.format('%.0f', math.max((queue_state.more[4] or 0) + 1, tonumber(now_ms) * 1000))
  local status_prefix, names, head = prefix .. STATUS_KEY, ids[1], #reply
  -- A packed hash is searched from its start; an entry of more than 64 bytes keeps it from being
  -- packed. No job is called '-'.
  local texts, statuses = { '-', '-----------------------------------------------------------------', 0, 0 }, { 0, 0 }
  local latest, text = nil, nil
  for i = 1, count do
    local id, job_type = ids[i], job_types[i]
    if job_type ~= latest then latest, text = job_type, token .. ' ' .. worker_id .. ' ' .. job_type end
    statuses[2 * i - 1], statuses[2 * i] = status_prefix .. id, 'active'
    texts[2 * i + 1], texts[2 * i + 2] = id, text
    reply[head + 2 * i - 1], reply[head + 2 * i] = id, data[i]
  end
  if count > 1 then names = table.concat(ids, '\n') end
  reply[1], reply[6] = 'claimed', token
  chunked('MSET', nil, statuses)
  chunked('SADD', active, ids)
  chunked('HSET', claims, texts)
  call('ZADD', claim_leases, lease_until_ms, token)
  call('HSET', claim_counts, token, count == 1 and '1' or count)
  count_starts(started, per_minute)
  local set = queue_state.set
  local n = #set
  set[n + 1], set[n + 2] = 'fence', token
  set[n + 3], set[n + 4] = 'r:' .. request_slot, request .. '\n' .. token .. '\n' .. names
  emit(events, events_max, 'started', now_ms, names, worker_id)
end
