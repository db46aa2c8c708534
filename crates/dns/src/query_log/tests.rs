use proptest::prelude::*;

use super::*;
use crate::query_record::{CacheTier, QueryOutcome, QueryProtocol};

fn row(seed: u64) -> LoggedQuery {
    let pick = |by: u64, of: u64| (seed / by) % of;
    LoggedQuery {
        number: 0,
        at: Millis(1_700_000_000_000 + i64::try_from(seed * 37 + pick(3, 5) * 11).unwrap()),
        client: format!("192.168.1.{}", pick(1, 25)).into(),
        client_id: if pick(2, 3) == 0 { "tablet" } else { "" }.into(),
        group: ["default", "kids"][pick(5, 2) as usize].into(),
        name: format!("host{}.Shop{}.example", pick(1, 400), pick(7, 60)).into(),
        qtype: [1, 28, 65, 15][pick(2, 4) as usize],
        rcode: [0, 3][pick(11, 2) as usize],
        outcome: QueryOutcome::ALL[pick(3, 12) as usize],
        tier: [CacheTier::None, CacheTier::Memory, CacheTier::Store][pick(4, 3) as usize],
        protocol: QueryProtocol::ALL[pick(9, 4) as usize],
        list: ["", "ads", "trackers"][pick(6, 3) as usize].into(),
        upstream: ["", "udp://9.9.9.9:53"][pick(8, 2) as usize].into(),
        answer: format!("192.0.2.{}", pick(1, 200)).into(),
        duration_us: u32::try_from(pick(1, 90_000)).unwrap(),
    }
}

fn open(folder: &std::path::Path) -> QueryLog {
    QueryLog::open(QueryLogOptions::new(folder.to_owned())).unwrap()
}

const NOW: Millis = Millis(1_700_000_000_000);

/// Every row that fits, by looking at all of them.
fn scan(all: &[LoggedQuery], filter: &LogFilter) -> Vec<LoggedQuery> {
    all.iter().rev().filter(|row| filter.matches(row)).cloned().collect()
}

/// Every row that fits, page by page.
fn search(log: &QueryLog, filter: &LogFilter, limit: usize) -> Vec<LoggedQuery> {
    let (mut rows, mut before) = (Vec::new(), None);
    loop {
        let page = log.search(filter, before, limit);
        rows.extend(page.rows);
        before = page.next;
        if before.is_none() {
            return rows;
        }
    }
}

fn filters() -> impl Strategy<Value = LogFilter> {
    let text = |words: &'static [&'static str]| {
        proptest::option::weighted(0.3, proptest::sample::select(words))
            .prop_map(|text| text.map(str::to_owned))
    };
    (
        (text(&["shop1", "HOST7.", "example", "none", ""]), text(&["192.168.1.3", "tablet", "x"])),
        (
            text(&["kids", "default"]),
            text(&["ads", "track"]),
            text(&["9.9.9.9"]),
            text(&["192.0.2.1"]),
        ),
        (
            proptest::option::weighted(0.2, proptest::sample::select(&[1_u16, 28][..])),
            proptest::collection::vec(proptest::sample::select(&QueryOutcome::ALL[..]), 0..3),
            proptest::option::weighted(0.2, proptest::sample::select(&QueryProtocol::ALL[..])),
            proptest::option::weighted(0.2, 0_i64..40_000),
            proptest::option::weighted(0.2, 0_i64..40_000),
            proptest::option::weighted(0.2, 0_u32..90_000),
        ),
    )
        .prop_map(|((name, client), (group, list, upstream, answer), rest)| {
            let (qtype, outcomes, protocol, from, to, min_duration_us) = rest;
            let at = |offset: i64| Millis(NOW.0 + offset);
            LogFilter {
                name,
                client,
                group,
                list,
                upstream,
                answer,
                qtype,
                outcomes,
                protocol,
                from: from.map(at),
                to: to.map(at),
                min_duration_us,
                ..LogFilter::default()
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_search_equals_a_scan(
        batches in proptest::collection::vec((1_u64..400, proptest::bool::ANY), 1..8),
        filters in proptest::collection::vec(filters(), 1..6),
        limit in 1_usize..200,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let log = open(folder.path());
        let (mut all, mut seed) = (Vec::new(), 0);
        for (count, is_flushed) in batches {
            let mut rows: Vec<LoggedQuery> = (seed..seed + count).map(row).collect();
            seed += count;
            log.append(rows.clone());
            for row in &mut rows {
                row.number = all.len() as u64 + 1;
                all.push(row.clone());
            }
            if is_flushed {
                log.flush(NOW).unwrap();
            }
        }
        for filter in &filters {
            prop_assert_eq!(search(&log, filter, limit), scan(&all, filter));
        }
        log.flush(NOW).unwrap();
        let again = open(folder.path());
        for filter in &filters {
            prop_assert_eq!(search(&again, filter, limit), scan(&all, filter));
        }
    }
}

/// Checks that the few rows of one name among so many are all found, each once.
#[track_caller]
fn assert_rare_rows(log: &QueryLog, count: u64) {
    let filter = LogFilter { name: Some("host7.shop3.".to_owned()), ..LogFilter::default() };
    let expected: Vec<Arc<str>> =
        (0..count).rev().map(row).filter(|row| filter.matches(row)).map(|row| row.client).collect();
    assert!(!expected.is_empty());
    let found: Vec<Arc<str>> =
        search(log, &filter, 1_000).into_iter().map(|row| row.client).collect();
    assert_eq!(found, expected);
}

#[test]
fn rows_are_small_and_merge_into_large_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    for start in (0..140_000).step_by(2_000) {
        log.append((start..start + 2_000).map(row).collect());
        log.flush(NOW).unwrap();
    }
    let stats = log.stats();
    assert_eq!(stats.rows, 140_000);
    let per_row = stats.bytes / stats.rows;
    assert!(per_row <= 16, "{per_row} bytes a row");
    assert_eq!(open(folder.path()).stats().rows, 140_000);
    assert_rare_rows(&log, 140_000);
}

#[test]
fn a_crash_in_the_middle_of_a_write_leaves_the_last_good_state() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.append((0..500).map(row).collect());
    log.flush(NOW).unwrap();
    log.append((500..900).map(row).collect());
    log.flush(NOW).unwrap();
    let tail = folder.path().join("tail.qlog");
    let whole = std::fs::read(&tail).unwrap();
    for cut in [1, 20, 60, 300] {
        std::fs::write(&tail, &whole[..whole.len() - cut]).unwrap();
        let again = open(folder.path());
        assert_eq!(again.stats().rows, 500, "the second block is cut by {cut} bytes");
        again.append((900..950).map(row).collect());
        again.flush(NOW).unwrap();
        assert_eq!(open(folder.path()).stats().rows, 550);
    }
    let mut flipped = whole.clone();
    flipped[70] ^= 1;
    std::fs::write(&tail, flipped).unwrap();
    assert_eq!(open(folder.path()).stats().rows, 0);
}

#[test]
fn a_crash_between_merge_and_clearing_the_tail_doubles_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.append((0..40_000).map(row).collect());
    log.flush(NOW).unwrap();
    let tail = folder.path().join("tail.qlog");
    let kept = std::fs::read(&tail).unwrap();
    log.append((40_000..80_000).map(row).collect());
    log.flush(NOW).unwrap();
    assert_eq!(std::fs::metadata(&tail).unwrap().len(), 0, "merged");
    std::fs::write(&tail, kept).unwrap();
    let again = open(folder.path());
    assert_eq!(again.stats().rows, 80_000);
    assert_rare_rows(&again, 80_000);
}

#[test]
fn a_client_is_deleted_everywhere_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.append((0..70_000).map(row).collect());
    log.flush(NOW).unwrap();
    log.append((70_000..71_000).map(row).collect());
    let filter = LogFilter { client: Some("192.168.1.3".to_owned()), ..LogFilter::default() };
    let before = log.stats().rows;
    let of_client =
        search(&log, &filter, 1_000).iter().filter(|row| &*row.client == "192.168.1.3").count();
    let deleted = log.delete_client("192.168.1.3").unwrap();
    assert_eq!(deleted, of_client as u64);
    for log in [&log, &open(folder.path())] {
        assert_eq!(log.stats().rows, before - deleted);
        assert!(search(log, &filter, 1_000).iter().all(|row| &*row.client != "192.168.1.3"));
    }
    log.append(vec![row(1)]);
    log.flush(NOW).unwrap();
    assert_eq!(open(folder.path()).stats().rows, before - deleted + 1);
    log.clear().unwrap();
    assert_eq!((log.stats().rows, open(folder.path()).stats().rows), (0, 0));
}

#[test]
fn files_are_bounded_by_size_and_age() {
    let folder = tempfile::tempdir().unwrap();
    let options = QueryLogOptions {
        max_bytes: 1 << 20,
        max_age: Duration::from_secs(3_600),
        ..QueryLogOptions::new(folder.path().to_owned())
    };
    let log = QueryLog::open(options).unwrap();
    log.append((0..70_000).map(row).collect());
    log.flush(NOW).unwrap();
    assert_eq!(log.stats().rows, 70_000);
    // A day later all of it is too old.
    log.flush(Millis(NOW.0 + 86_400_000)).unwrap();
    assert_eq!((log.stats().rows, log.stats().bytes), (0, 0));
}

#[test]
fn a_follower_sees_rows_as_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let mut following = log.follow();
    log.append(vec![row(1), row(2)]);
    let seen = following.try_recv().unwrap();
    assert_eq!(seen.iter().map(|row| row.number).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_disk_that_takes_nothing_bounds_memory_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(&folder.path().join("log"));
    std::fs::remove_dir_all(folder.path().join("log")).unwrap();
    for start in 0..3 {
        log.append((start * 100_000..(start + 1) * 100_000).map(row).collect());
        log.flush(NOW).unwrap_err();
    }
    let stats = log.stats();
    assert!(stats.is_failing);
    assert_eq!(stats.rows + stats.dropped, 300_000);
    assert_eq!(stats.rows, OPEN_ROWS_MAX as u64);
    std::fs::create_dir(folder.path().join("log")).unwrap();
    log.flush(NOW).unwrap();
    assert!(!log.stats().is_failing);
    assert_eq!(open(&folder.path().join("log")).stats().rows, OPEN_ROWS_MAX as u64);
}
