-- place_view(read, positions, claims, now_ms, id): what the holder of a place may know, as
-- status.lua's header lists it, from what read_place found.
local function place_view(read, positions, claims, now_ms, id)
  local m, p, s = read.m, read.p, read.s
  local place, claim_by, status = '', '', p[1]
  if read.rank then
    status = 'waiting'
    place = int(shown(positions, line_of(m[2], m[3], s[1], now_ms), read.rank, read.total))
  elseif not status then
    claim_by = redis.call('ZSCORE', claims, id)
    if not claim_by then
      return { 'unknown' }
    end
    status = 'admitted'
  elseif status == 'admitted' then
    claim_by = redis.call('ZSCORE', claims, id) or ''
  end
  return { status, p[2] or '', p[3] or '', p[4] or '0', p[5] or '', place, int(read.total),
    claim_by, p[6] or '', p[7] or '', m[1], m[4] or '', s[2] or '0', p[8] or '' }
end
