-- jobs/complete -- writes the results of jobs that succeeded, if they are still their worker's.
--
-- KEYS   1 active     set     ids that run
--        2 claims     hash    id -> 'token worker type' of who runs it
--        3 leases     zset    ids that run under a lease of their own
--        4 finished   list    'ms id' of ended jobs, newest first
--        5 parents    set     ids that other jobs wait for
--        6 settled    list    ended ids that other jobs wait for
--        7 blocked    set     types that somebody wanted while they were at their limit
--        8 processed  string  how many jobs succeeded
--        9 spent      string  how many milliseconds they took
--        10 cancelled hash    ids that shall stop
--        11 events    stream  what happened
--        12 terms     zset    tokens of claims; score = until when their jobs are held
--        13 held      hash    token -> how many jobs run under that term
--        14 ..keys            running counter per type, then lock, status and result per job: what
--                             `finish` spells from the prefix
-- ARGV   1 now_ms  2 result_ttl_s  3 events_max  4 done  5 wake  6 spent_ms  7 prefix
--        8 ..rest
--        of each claim: its text, type, keep, how many jobs, how many results; ids; results
-- REPLY  {'completed' or 'settled', numbers of the jobs that were not done}: those are another's by
--        now; a repeated call counts as done
--
-- Keeps: only the claim that holds a job completes it, once: lock, active, claims, lease and the
-- type's counter change together with status and result.
local lost, settled = finish({
  active = KEYS[1], claims = KEYS[2], leases = KEYS[3], finished = KEYS[4], parents = KEYS[5],
  settled = KEYS[6], blocked = KEYS[7], processed = KEYS[8], spent = KEYS[9], cancelled = KEYS[10],
  events = KEYS[11], terms = KEYS[12], held = KEYS[13], now = ARGV[1], result_ttl = ARGV[2],
  events_max = ARGV[3], done = ARGV[4], wake = ARGV[5], spent_ms = ARGV[6], prefix = ARGV[7],
}, 8)
return { settled and 'settled' or 'completed', spread(lost) }
