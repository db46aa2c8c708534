//! Series of samples at four resolutions, shared by instances.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{
    Key, Millis, Store,
    histogram::{BUCKETS, bucket},
    history::{
        History, HistoryKeys, NUMBER_MAX_BYTES, OwnSample, RESOLUTIONS, SERIES_MAX_BYTES,
        SERIES_MOST, SharedSample,
    },
    redis::AsyncCommands,
};
use testkit::each_store::START;

const SECOND: Duration = Duration::from_secs(1);

fn keys() -> HistoryKeys {
    HistoryKeys {
        series: || Key::raw("series"),
        chunk: |resolution, number| Key::raw(format!("chunk:{resolution}:{number}")),
    }
}

fn history(store: &Store) -> History {
    History::new(store, keys())
}

/// One round that writes the gauge `line` as `value`, if it is this instance's turn.
async fn gauge(history: &History, value: f64) {
    history.tick(&[], &["room"], async |_| vec![SharedSample::gauge("line", value)]).await.unwrap();
}

async fn read(
    history: &History,
    name: &str,
    from: Millis,
    to: Millis,
    step: u64,
) -> Vec<Option<f64>> {
    let step = Some(Duration::from_secs(step));
    history.read(&[name], from, to, step).await.unwrap().lines.remove(0)
}

testkit::each_store! {
    async fn what_one_instance_wrote_another_reads_also_after_a_restart(t: TestStore) {
        let writer = history(&t.store);
        for value in 0..30 {
            gauge(&writer, f64::from(value)).await;
            t.clock.advance(SECOND);
        }
        drop(writer);
        let reader = history(&t.another().await);
        let to = START + SECOND * 29;
        let expect: Vec<_> = (0..30).map(|value| Some(f64::from(value))).collect();
        assert_eq!(read(&reader, "line", START, to, 1).await, expect);
        assert_eq!(read(&reader, "line", START, to, 10).await, [Some(4.5), Some(14.5), Some(24.5)], "the mean");
        assert_eq!(read(&reader, "unknown", START, to, 10).await, [None, None, None]);
        let series = reader.series().await.unwrap();
        assert_eq!(series.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["line"]);
    }

    async fn a_shared_value_is_written_once_and_a_killed_instance_leaves_no_hole(t: TestStore) {
        let (a, b) = (history(&t.store), history(&t.another().await));
        for second in 0..120_u32 {
            // One is killed after a minute; until then they take turns at being first.
            if second < 60 && second % 2 == 0 {
                gauge(&a, f64::from(second)).await;
            }
            gauge(&b, f64::from(second)).await;
            if second < 60 && second % 2 == 1 {
                gauge(&a, 1e9).await;
            }
            t.clock.advance(SECOND);
        }
        let reader = history(&t.store);
        let to = START + SECOND * 119;
        let expect: Vec<_> = (0..120).map(|second| Some(f64::from(second))).collect();
        assert_eq!(read(&reader, "line", START, to, 1).await, expect);
        let tens = read(&reader, "line", START, to, 10).await;
        assert!(tens.iter().all(Option::is_some), "{tens:?}");
        assert_eq!(read(&reader, "line", START, to, 60).await, [Some(29.5), Some(89.5)]);
    }

    async fn numbers_of_processes_are_added_and_counts_are_read_per_second(t: TestStore) {
        let (a, b) = (history(&t.store), history(&t.another().await));
        for second in 0..40_u64 {
            let own = |count| [OwnSample::count("requests", count), OwnSample::level("memory", 100.0)];
            a.tick(&own(second * 10), &[], async |_| Vec::new()).await.unwrap();
            if second < 20 {
                b.tick(&own(second * 5), &[], async |_| Vec::new()).await.unwrap();
            }
            t.clock.advance(SECOND);
        }
        let reader = history(&t.store);
        let to = START + SECOND * 39;
        let rates = read(&reader, "requests", START, to, 1).await;
        assert_eq!(rates[0], None, "the first round has nothing to compare with");
        assert!(rates[1..20].iter().all(|rate| *rate == Some(15.0)), "{rates:?}");
        assert!(rates[20..].iter().all(|rate| *rate == Some(10.0)), "{rates:?}");
        assert_eq!(read(&reader, "memory", START, to, 10).await, [Some(200.0), Some(200.0), Some(100.0), Some(100.0)]);
        assert_eq!(read(&reader, "requests", START, to, 20).await[1], Some(10.0), "the mean of the rate");
    }

    async fn a_total_is_read_per_second_whoever_wrote_it(t: TestStore) {
        let (a, b) = (history(&t.store), history(&t.another().await));
        for second in 0..60_u32 {
            let total = if second < 40 { f64::from(second) * 3.0 } else { f64::from(second) };
            let samples = async |_| vec![SharedSample::total("done", total)];
            if second % 7 == 0 { &a } else { &b }.tick(&[], &["jobs"], samples).await.unwrap();
            t.clock.advance(SECOND);
        }
        let reader = history(&t.store);
        let line = read(&reader, "done", START, START + SECOND * 59, 1).await;
        assert!(line[1..40].iter().all(|rate| *rate == Some(3.0)), "{line:?}");
        assert_eq!(line[40], None, "a total that fell does not tell how much was counted");
        assert!(line[41..].iter().all(|rate| *rate == Some(1.0)), "{line:?}");
        assert_eq!(read(&reader, "done", START, START + SECOND * 59, 10).await[1..4], [Some(3.0); 3]);
    }

    async fn percentiles_are_those_of_all_processes_together(t: TestStore) {
        let (a, b) = (history(&t.store), history(&t.another().await));
        let (mut slow, mut fast) = ([0; BUCKETS], [0; BUCKETS]);
        for _ in 0..25 {
            for (history, counted) in [(&a, &slow), (&b, &fast)] {
                let own = [OwnSample::histogram("latency", counted)];
                history.tick(&own, &[], async |_| Vec::new()).await.unwrap();
            }
            slow[bucket(Duration::from_millis(1_000))] += 2;
            fast[bucket(Duration::from_millis(1))] += 98;
            t.clock.advance(SECOND);
        }
        let reader = history(&t.store);
        let (from, to) = (START + SECOND * 10, START + SECOND * 19);
        let p50 = read(&reader, "latency:p50", from, to, 10).await[0].unwrap();
        let p99 = read(&reader, "latency:p99", from, to, 10).await[0].unwrap();
        assert!((0.9..1.1).contains(&p50) && (900.0..1_100.0).contains(&p99), "{p50} {p99}");
        assert_eq!(read(&reader, "latency", from, to, 10).await, [Some(100.0)], "per second");
        assert_eq!(read(&reader, "latency:p1000", from, to, 10).await, [None]);
    }

    async fn a_gap_is_a_gap_and_not_zero(t: TestStore) {
        let history = history(&t.store);
        for _ in 0..20 {
            gauge(&history, 0.0).await;
            t.clock.advance(SECOND);
        }
        t.clock.advance(SECOND * 100);
        for _ in 0..40 {
            gauge(&history, 0.0).await;
            t.clock.advance(SECOND);
        }
        let line = read(&history, "line", START, START + SECOND * 159, 10).await;
        let (zero, gap) = (Some(0.0), None);
        let expect = [vec![zero; 2], vec![gap; 10], vec![zero; 4]].concat();
        assert_eq!(line, expect);
    }

    async fn a_process_that_was_held_up_fills_the_seconds_it_knows_of(t: TestStore) {
        let history = history(&t.store);
        for (second, count) in [(0, 0), (1, 10), (4, 40), (5, 50)] {
            t.clock.set(START + SECOND * second);
            let own = [OwnSample::count("requests", count)];
            let shared = async |_| vec![SharedSample::gauge("line", f64::from(second))];
            history.tick(&own, &["room"], shared).await.unwrap();
        }
        let to = START + SECOND * 5;
        let known = [10.0; 5].map(Some);
        assert_eq!(read(&history, "requests", START + SECOND, to, 1).await, known);
        let expect = [1.0, 4.0, 4.0, 4.0, 5.0].map(Some);
        assert_eq!(read(&history, "line", START + SECOND, to, 1).await, expect);
    }

    async fn longer_steps_survive_the_shorter_ones_and_an_outage_of_all(t: TestStore) {
        let first = history(&t.store);
        // Two hours and a bit at one round every ten seconds: what a slow machine would do.
        for round in 0..750_u32 {
            gauge(&first, f64::from(round % 6)).await;
            t.clock.advance(SECOND * 10);
        }
        drop(first);
        // Nobody runs for half an hour, then one starts and catches up.
        t.clock.advance(SECOND * 1_800);
        let second = history(&t.store);
        for _ in 0..30 {
            gauge(&second, 7.0).await;
            t.clock.advance(SECOND);
        }
        let minutes = read(&second, "line", START, START + SECOND * 7_439, 60).await;
        assert_eq!(minutes.len(), 124);
        assert!(minutes.iter().all(|value| *value == Some(2.5)), "{minutes:?}");
        let hours = read(&second, "line", START, START + SECOND * 7_199, 3_600).await;
        assert_eq!(hours, [Some(2.5), Some(2.5)]);
        let silent = read(&second, "line", START + SECOND * 7_560, START + SECOND * 9_180, 60).await;
        assert!(silent.iter().all(Option::is_none), "{silent:?}");
        // After two days only hours are left.
        t.clock.advance(SECOND * 3_600 * 49);
        assert_eq!(read(&second, "line", START, START + SECOND * 3_599, 60).await, [Some(2.5)], "an hour");
    }

    async fn two_rounds_within_a_second_write_once(t: TestStore) {
        let history = history(&t.store);
        gauge(&history, 1.0).await;
        t.clock.advance(Duration::from_millis(300));
        gauge(&history, 2.0).await;
        assert_eq!(read(&history, "line", START, START, 1).await, [Some(1.0)]);
    }

    async fn a_lost_reply_and_an_outage_do_no_harm(t: TestStore) {
        let history = history(&t.store);
        gauge(&history, 1.0).await;
        t.clock.advance(SECOND);
        t.faults.go_away();
        let lost = history.tick(&[], &["room"], async |_| Vec::new()).await;
        assert!(lost.is_err());
        t.faults.come_back();
        t.clock.advance(SECOND);
        gauge(&history, 3.0).await;
        let line = read(&history, "line", START, START + SECOND * 2, 1).await;
        assert_eq!(line, [1.0, 3.0, 3.0].map(Some));
    }

    async fn there_are_only_so_many_series_and_those_nobody_writes_make_room(t: TestStore) {
        let history = history(&t.store);
        let all = |from: usize| -> Vec<SharedSample> {
            (from..from + SERIES_MOST).map(|n| SharedSample::gauge(format!("s{n}"), 1.0)).collect()
        };
        history.tick(&[], &["a"], async |_| all(0)).await.unwrap();
        t.clock.advance(SECOND);
        history.tick(&[], &["a"], async |_| all(SERIES_MOST)).await.unwrap();
        assert_eq!(read(&history, "s0", START, START, 1).await, [Some(1.0)]);
        let refused = format!("s{SERIES_MOST}");
        assert_eq!(read(&history, &refused, START, START + SECOND, 1).await, [None, None]);
        assert_eq!(history.series().await.unwrap().len(), SERIES_MOST);
        // A hundred days later nothing is left of them.
        t.clock.advance(SECOND * 3_600 * 24 * 100);
        let now = t.clock.now();
        history.tick(&[], &["a"], async |_| all(SERIES_MOST)).await.unwrap();
        assert_eq!(read(&history, &refused, now, now, 1).await, [Some(1.0)]);
        assert_eq!(history.series().await.unwrap().len(), SERIES_MOST);
    }

    async fn strange_names_and_values_are_left_out(t: TestStore) {
        let history = history(&t.store);
        let samples = ["", "a b", "a,b", "@1m", "a:p99", "größe"].map(|name| SharedSample::gauge(name, 1.0));
        history.tick(&[], &["a"], async |_| {
            let mut samples = samples.to_vec();
            samples.push(SharedSample::gauge("nan", f64::NAN));
            samples.push(SharedSample::gauge("good", 1.0));
            samples
        }).await.unwrap();
        assert_eq!(read(&history, "good", START, START, 1).await, [Some(1.0)]);
        assert_eq!(read(&history, "nan", START, START, 1).await, [None]);
        assert_eq!(history.series().await.unwrap().len(), 2);
    }

    async fn rows_that_others_broke_are_no_rows(t: TestStore) {
        let history = history(&t.store);
        gauge(&history, 1.0).await;
        let mut store = t.store.clone();
        let epoch: i64 = START.as_secs() / 60;
        let chunk = format!("chunk:1s:{}", epoch % 12);
        for (field, row) in [("s1:room", "\u{ff}\u{ff}"), ("s99:room", "x"), ("sx", "x"), ("", ""), ("o0:x", "\u{3}")] {
            store.hset::<_, _, _, ()>(&chunk, field, row).await.unwrap();
        }
        t.clock.advance(SECOND * 2);
        assert_eq!(read(&history, "line", START, START + SECOND, 1).await, [Some(1.0), None]);
        store.hset::<_, _, _, ()>("series", "line", "not a record").await.unwrap();
        gauge(&history, 1.0).await;
    }
}

/// Writes more than the rings hold and counts what is there in the end: so many chunks, so many rows
/// in each, so many bytes for a number. Their product is the bound of a series.
#[tokio::test]
async fn a_series_takes_no_more_bytes_than_stated() {
    let t = testkit::TestStore::embedded().await;
    let history = history(&t.store);
    let mut store = t.store.clone();
    let series = 8_u32;
    // Large fractions are the longest numbers there are.
    let samples = |round: u32| -> Vec<SharedSample> {
        let value = |n: u32| 3e6 + f64::from(round * n) / 7.0 + 0.123;
        (0..series).map(|n| SharedSample::gauge(format!("s{n}"), value(n))).collect()
    };
    // Every second for longer than the finest ring is; then three rounds an hour for a week, which write a
    // row of each longer step; then, as far on as the ring of hours is long, again every second.
    let once = [1].as_slice();
    let mut round = 0;
    for (times, pauses) in
        [(800, once), (7 * 24, &[13, 53, 3_534]), (1, &[32 * 72 * 3_600]), (800, once)]
    {
        for pause in pauses.repeat(times) {
            history.tick(&[], &["a"], async |_| samples(round)).await.unwrap();
            t.clock.advance(SECOND * pause);
            round += 1;
        }
        if pauses.len() == 3 {
            let epoch = START.as_secs() / 3_600 / 72 + 1;
            let length: usize = store.hlen(format!("chunk:1h:{}", epoch % 32)).await.unwrap();
            assert_eq!(length, 73, "a full chunk of hours and its epoch");
        }
    }
    let mut most_rows = 0;
    for (shape, (chunk_rows, ring)) in
        RESOLUTIONS.iter().zip([(60, 12), (60, 14), (120, 26), (72, 32)])
    {
        most_rows += chunk_rows * ring;
        for number in 0..64 {
            let fields: Vec<(String, Vec<u8>)> =
                store.hgetall(format!("chunk:{}:{number}", shape.name)).await.unwrap();
            let rows: Vec<_> = fields.iter().filter(|(field, _)| field.starts_with('s')).collect();
            assert!(number < ring || fields.is_empty(), "{}: {number}", shape.name);
            assert!(rows.len() <= chunk_rows, "{}: {} rows", shape.name, rows.len());
            let longest = rows.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
            assert!(longest <= NUMBER_MAX_BYTES * series as usize, "{longest} bytes");
        }
    }
    assert_eq!((NUMBER_MAX_BYTES * most_rows, SERIES_MAX_BYTES), (76_824, 76_824));
}
