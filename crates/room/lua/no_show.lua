-- room/no_show -- takes back admissions without a session: the first time the position goes back to
-- the head of its lane, the second time it expires.
-- uses: clocks_stopped, count_one, drop_tombstones, emit, finish, int, num, return_to_lane
--
-- KEYS   1 meta       hash    configuration and status of the queue
--        2 state      hash    counters, clocks
--        3 positions  zset    waiting positions; score = admission order
--        4 lane0      list    waiting ids of priority 0
--        5 lane1      list    priority 1
--        6 lane2      list    priority 2
--        7 lane3      list    priority 3
--        8 heartbeat  zset    last heartbeat, Unix seconds
--        9 admitted   zset    admitted ids; score = start_by_ms
--       10 stats      hash    counters of this hour
--       11 events     stream  events of the queue
--       12 ..records  hash    the positions whose admission window seems to have ended
-- ARGV   1 now_ms  2 stall_ms  3 queue_id  4 ..ids
-- REPLY  {'done', returned, expired} | {'stopped'} | {'unknown_queue'}
--
-- Keeps: the slot is free in the same step. A position that returns has its old score, so it stands
-- before everybody of its lane who was behind it. A session started in between wins.
local now_ms = tonumber(now_ms)
local m = redis.call('HMGET', meta, 'status', 'claim_window_seconds', 'position_ttl')
if not m[1] then
  return { 'unknown_queue' }
end
if clocks_stopped(m[1], state, now_ms, tonumber(stall_ms)) then
  return { 'stopped' }
end
if num(redis.call('HGET', state, 'floor_ms'), 0) + num(m[2], 120) * 1000 > now_ms then
  return { 'stopped' }
end
local now_s = int(math.floor(now_ms / 1000))
local returned, expired = 0, 0
local lanes = { [0] = lane0, lane1, lane2, lane3 }
for i = 1, #ARGV - ids do
  local id, position = ARGV[ids + i], KEYS[records + i]
  local by = num(redis.call('ZSCORE', admitted, id))
  if by and by <= now_ms then
    local p = redis.call('HMGET', position, 'returns', 'score', 'priority')
    redis.call('ZREM', admitted, id)
    if p[2] and not p[1] then
      local lane = lanes[num(p[3], 0)]
      drop_tombstones(lane, positions, 1000)
      redis.call('ZADD', positions, p[2], id)
      redis.call('ZADD', heartbeat, now_s, id)
      return_to_lane(lane, positions, id, tonumber(p[2]))
      redis.call('HSET', position, 'status', 'waiting', 'session_id', '', 'returns', '1',
        'last_heartbeat', now_s)
      redis.call('EXPIRE', position, m[3])
      emit(events, 'position.returned', now_ms, '{"position_id":"' .. id .. '"}')
      returned = returned + 1
    else
      finish(position, 'expired', 'admission_timeout', now_ms, m[3])
      emit(events, 'position.expired', now_ms,
        '{"position_id":"' .. id .. '","reason":"admission_timeout"}')
      expired = expired + 1
    end
  end
end
if expired > 0 then
  count_one(stats, state, 'total_expired', int(expired))
end
if returned + expired > 0 then
  count_one(stats, state, 'total_no_show', int(returned + expired))
end
return { 'done', int(returned), int(expired) }
