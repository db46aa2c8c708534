-- next_in_line(positions, line, most, skip_higher, skip_normal): returns the next to be admitted, in
-- order, as id, score, id, score. The first of the line are left out: skip_higher of those ahead of
-- line.normal and skip_normal of the others; without a reserved share, skip_normal of all.
-- uses: int
local function next_in_line(positions, line, most, skip_higher, skip_normal)
  if most < 1 then
    return {}
  end
  skip_higher, skip_normal = skip_higher or 0, skip_normal or 0
  if line.share == 0 then
    return redis.call('ZRANGE', positions, int(skip_normal), int(skip_normal + most - 1), 'WITHSCORES')
  end
  local edge = int(line.normal)
  local higher = redis.call('ZRANGEBYSCORE', positions, '-inf', '(' .. edge,
    'WITHSCORES', 'LIMIT', int(skip_higher), int(most))
  local normal = redis.call('ZRANGEBYSCORE', positions, edge, '+inf',
    'WITHSCORES', 'LIMIT', int(skip_normal), int(most))
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
