//! What the process uses, as the system tells it, for INFO.

use std::fs;
use std::time::Duration;

use engine::ProcessUsage;

/// Reads what the process uses; zero where the system does not tell.
pub(super) fn of_process() -> ProcessUsage {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (user_time, system_time) = times_of(&read("/proc/self/stat")).unwrap_or_default();
    ProcessUsage {
        resident_bytes: resident_bytes(&read("/proc/self/statm")).unwrap_or(0),
        system_bytes: system_bytes(&read("/proc/meminfo")).unwrap_or(0),
        user_time,
        system_time,
    }
}

/// Reads the second number of `statm`: pages in memory.
fn resident_bytes(statm: &str) -> Option<usize> {
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size())
}

/// Reads the line `MemTotal: n kB` of `meminfo`.
fn system_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// Reads the times in user mode and in the system from `stat`: fields 14 and 15, in ticks. The name of
/// the process, field 2, may hold anything, but ends with the last parenthesis.
fn times_of(stat: &str) -> Option<(Duration, Duration)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut ticks = rest.split(' ').skip(11).map(|ticks| ticks.parse::<u64>().ok());
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let time = |ticks: u64| Duration::from_millis(ticks.saturating_mul(1_000) / per_second);
    Some((time(ticks.next()??), time(ticks.next()??)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_system_are_read_whatever_the_process_is_called() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 105 0 0 0 250 75 0 0 20 0 1 0 100 8192 12";
        let per_second = rustix::param::clock_ticks_per_second();
        let expected = |ticks: u64| Duration::from_millis(ticks * 1_000 / per_second);
        assert_eq!(times_of(stat), Some((expected(250), expected(75))));
        assert_eq!(system_bytes("MemTotal:       16 kB\nMemFree: 2 kB\n"), Some(16_384));
        assert_eq!(resident_bytes("9 2 1 0 0 0 0\n"), Some(2 * rustix::param::page_size()));
        for nothing in ["", "7 (a", "7 (a) S 1"] {
            assert_eq!(times_of(nothing), None);
        }
    }
}
