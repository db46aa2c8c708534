-- next_in_line(positions, line, most): returns the next to be admitted, in order, as id, score, id, score.
local function next_in_line(positions, line, most)
  if most < 1 then
    return {}
  end
  if line.share == 0 then
    return redis.call('ZRANGE', positions, '0', int(most - 1), 'WITHSCORES')
  end
  local edge = int(line.normal)
  local higher = redis.call('ZRANGEBYSCORE', positions, '-inf', '(' .. edge,
    'WITHSCORES', 'LIMIT', '0', int(most))
  local normal = redis.call('ZRANGEBYSCORE', positions, edge, '+inf',
    'WITHSCORES', 'LIMIT', '0', int(most))
  local order, since, h, n = {}, line.since, 1, 1
  while #order < 2 * most and (higher[h] or normal[n]) do
    if normal[n] and (since >= line.share - 1 or not higher[h]) then
      order[#order + 1], order[#order + 2] = normal[n], normal[n + 1]
      n, since = n + 2, 0
    else
      order[#order + 1], order[#order + 2] = higher[h], higher[h + 1]
      h, since = h + 2, since + 1
    end
  end
  return order
end
