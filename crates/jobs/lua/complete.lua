-- jobs/complete -- writes the results of jobs that succeeded, if they are still their worker's.
-- uses: finish
--
-- KEYS   1 active     set     ids that run
--        2 claims     hash    id -> 'token worker type' of who runs it
--        3 claim_leases zset    tokens of claims; score = until when their jobs are held
--        4 claim_counts hash    token -> how many jobs run under that term
--        5 events     stream  what happened
--        6 parked     zset    types whose lanes are put aside; score = when to look again
--        7 leases     zset    ids that run under a lease of their own
--        8 finished   list    'ms id' of ended jobs, newest first
--        9 parents    set     ids that other jobs wait for
--        10 settled   list    ended ids that other jobs wait for
--        11 processed string  how many jobs succeeded
--        12 spent     string  how many milliseconds they took
--        13 cancelled hash    ids that shall stop
--        14 deadlines zset    ids that run and have a timeout; score = until when
--        15 ..keys            running counter per type, then lock, status, result and attempt per job:
--                             what `finish` spells from the prefix
-- ARGV   1 now_ms  2 prefix  3 events_max  4 result_ttl_s  5 done  6 wake  7 spent_ms  8 ..rest
--        of each claim: its text, type, keep, how many jobs, how many results; ids; results
-- REPLY  {'completed' or 'settled', numbers of the jobs that were not done}: those are another's by
--        now, or late; negative: done by an earlier call of the same words
--
-- Keeps: only the claim that holds a job completes it, once: lock, active, claims, lease and the
-- type's counter change together with status and result.
local lost, any_settled = finish(rest + 1, result_ttl_s, done, wake, spent_ms)
local reply = { any_settled and 'settled' or 'completed' }
for n = 1, #lost do reply[n + 1] = lost[n] end
return reply
