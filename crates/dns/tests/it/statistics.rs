//! Statistics that all instances of a store share.

use std::time::Duration;

use dns::{
    CacheTier, Label, Labels, QueryOutcome, QueryProtocol, QueryRecord, Statistics, StatisticsField,
};
use store::Millis;

fn record(at: Millis, outcome: QueryOutcome, list: Label) -> QueryRecord {
    QueryRecord {
        at,
        client: [192, 0, 2, 1].into(),
        client_id: Label::NONE,
        group: Label::NONE,
        list,
        upstream: Label::NONE,
        qtype: 28,
        rcode: 0,
        outcome,
        tier: CacheTier::Memory,
        protocol: QueryProtocol::Udp,
        duration_us: 900,
    }
}

testkit::each_store! {
    async fn counts_of_all_instances_add_up(t: TestStore) {
        let (one, two) = (Statistics::new(&t.store), Statistics::new(&t.store));
        let labels = Labels::default();
        let ads = labels.label("ads");
        let now = t.store.now();
        let name = "shop.example".parse().unwrap();
        for _ in 0..3 {
            one.count(&record(now, QueryOutcome::Cached, Label::NONE), &labels, "tablet", Some(&name));
        }
        two.count(&record(now, QueryOutcome::Blocked, ads), &labels, "tv", Some(&"ads.example".parse().unwrap()));
        two.count(&record(now, QueryOutcome::Blocked, ads), &labels, "tv", None);
        one.flush().await.unwrap();
        two.flush().await.unwrap();
        two.flush().await.unwrap();
        let report = one.read(Millis(now.0 - 3_600_000), Millis(now.0 + 1)).await.unwrap();
        assert_eq!(report.count(StatisticsField::Total, ""), 5);
        assert_eq!(report.count(StatisticsField::Outcome, "blocked"), 2);
        assert_eq!(report.count(StatisticsField::List, "ads"), 2);
        assert_eq!(report.count(StatisticsField::Type, "28"), 5);
        assert_eq!(report.top(StatisticsField::Client, 10), [("tablet".to_owned(), 3), ("tv".to_owned(), 2)]);
        assert_eq!(report.names, [("shop.example".to_owned(), 3), ("ads.example".to_owned(), 1)]);
        assert_eq!(report.blocked_names, [("ads.example".to_owned(), 1)]);
        assert_eq!(report.percentile_us(0.5), Some(1_024));
        let of_year = one.read(Millis(now.0 - 86_400_000 * 30), Millis(now.0 + 1)).await.unwrap();
        assert_eq!(of_year.count(StatisticsField::Total, ""), 5, "by day");
    }

    async fn what_the_store_does_not_take_is_added_later(t: TestStore) {
        let statistics = Statistics::new(&t.store);
        let (labels, now) = (Labels::default(), t.store.now());
        statistics.count(&record(now, QueryOutcome::Cached, Label::NONE), &labels, "tv", None);
        t.faults.go_away();
        statistics.flush().await.unwrap_err();
        t.faults.come_back();
        statistics.flush().await.unwrap();
        let report = statistics.read(now, Millis(now.0 + 1)).await.unwrap();
        assert_eq!(report.count(StatisticsField::Total, ""), 1);
    }

    async fn counts_are_added_every_minute_and_shown_here_at_once(t: TestStore) {
        let (one, two) = (Statistics::new(&t.store), Statistics::new(&t.store));
        let (labels, name) = (Labels::default(), "shop.example".parse().unwrap());
        let ask = async |times: u32| {
            for _ in 0..times {
                let now = t.store.now();
                one.count(&record(now, QueryOutcome::Cached, Label::NONE), &labels, "tv", Some(&name));
            }
            one.flush_due().await.unwrap();
        };
        let seen = async |statistics: &Statistics| {
            let now = t.store.now();
            let report = statistics.read(Millis(now.0 - 600_000), Millis(now.0 + 1)).await.unwrap();
            (report.count(StatisticsField::Total, ""), report.names.first().map_or(0, |(_, count)| *count))
        };
        ask(1).await;
        assert_eq!((seen(&one).await, seen(&two).await), ((1, 1), (1, 1)), "the first at once");
        t.clock.advance(Duration::from_secs(59));
        ask(2).await;
        assert_eq!((seen(&one).await, seen(&two).await), ((3, 3), (1, 1)), "the others wait");
        t.clock.advance(Duration::from_secs(1));
        ask(0).await;
        assert_eq!((seen(&one).await, seen(&two).await), ((3, 3), (3, 1)), "names wait longer");
        t.clock.advance(Duration::from_secs(240));
        ask(0).await;
        assert_eq!((seen(&one).await, seen(&two).await), ((3, 3), (3, 3)));
        // Nothing is counted twice.
        one.flush().await.unwrap();
        assert_eq!((seen(&one).await, seen(&two).await), ((3, 3), (3, 3)));
    }

    async fn a_day_is_added_up_once_it_is_over_and_outlives_its_hours(t: TestStore) {
        const DAY: Duration = Duration::from_secs(86_400);
        let (one, two) = (Statistics::new(&t.store), Statistics::new(&t.store));
        let (labels, name) = (Labels::default(), "ads.example".parse().unwrap());
        let begin = t.store.now();
        for _ in 0..3 {
            let now = t.store.now();
            one.count(&record(now, QueryOutcome::Blocked, labels.label("ads")), &labels, "tv", Some(&name));
            one.flush().await.unwrap();
            t.clock.advance(Duration::from_secs(7_200));
        }
        let sum = async || {
            let report = two.read(Millis(begin.0 - 1), Millis(t.store.now().0 + 1)).await.unwrap();
            let counts = [
                report.count(StatisticsField::Total, ""),
                report.count(StatisticsField::List, "ads"),
                report.count(StatisticsField::BlockedClient, "tv"),
            ];
            (counts, report.names, report.blocked_names)
        };
        let expected = ([3, 3, 3], vec![("ads.example".to_owned(), 3)], vec![("ads.example".to_owned(), 3)]);
        for day in 0..4 {
            assert_eq!(sum().await, expected, "after {day} days");
            t.clock.advance(DAY);
            // Whoever comes first adds it up, whoever comes second changes nothing.
            one.flush_due().await.unwrap();
            two.flush_due().await.unwrap();
        }
        let mut store = t.store.clone();
        let hour = begin.0 / 3_600_000;
        for key in (hour..hour + 8).flat_map(|hour| {
            [format!("resolver:stats:h{hour}"), format!("{{resolver:stats:h{hour}}}")]
        }) {
            store::redis::cmd("DEL").arg(key).query_async::<()>(&mut store).await.unwrap();
        }
        t.clock.advance(DAY * 10);
        assert_eq!(sum().await, expected, "from the day alone");
    }

    async fn a_client_is_forgotten_in_every_hour_and_day(t: TestStore) {
        let statistics = Statistics::new(&t.store);
        let (labels, begin) = (Labels::default(), t.store.now());
        let clients = async || {
            let report = statistics.read(Millis(begin.0 - 1), Millis(t.store.now().0 + 1)).await.unwrap();
            let blocked = report.top(StatisticsField::BlockedClient, 9).len();
            (report.count(StatisticsField::Total, ""), report.top(StatisticsField::Client, 9).len(), blocked)
        };
        for _ in 0..2 {
            for client in ["tv", "tablet"] {
                let record = record(t.store.now(), QueryOutcome::Blocked, Label::NONE);
                statistics.count(&record, &labels, client, None);
            }
            statistics.flush_due().await.unwrap();
            t.clock.advance(Duration::from_secs(86_400 * 3));
        }
        statistics.flush_due().await.unwrap();
        statistics.count(&record(t.store.now(), QueryOutcome::Blocked, Label::NONE), &labels, "tv", None);
        assert_eq!(clients().await, (5, 2, 2));
        statistics.forget_client("tv").await.unwrap();
        assert_eq!(clients().await, (5, 1, 1), "the totals stay");
    }

    async fn names_without_end_stay_bounded(t: TestStore) {
        let statistics = Statistics::new(&t.store);
        let (labels, now) = (Labels::default(), t.store.now());
        for n in 0..30_000_u32 {
            let name = format!("n{n}.example").parse().unwrap();
            statistics.count(&record(now, QueryOutcome::Upstream, Label::NONE), &labels, &format!("10.0.{}.{}", n / 200, n % 200), Some(&name));
            if n % 5_000 == 0 {
                statistics.flush().await.unwrap();
            }
        }
        statistics.flush().await.unwrap();
        let report = statistics.read(now, Millis(now.0 + 1)).await.unwrap();
        assert!(report.names.len() <= 500, "{}", report.names.len());
        assert!(report.top(StatisticsField::Client, usize::MAX).len() <= 5_000);
        let counted = report.count(StatisticsField::Total, "") + statistics.dropped();
        assert_eq!(counted, 30_000, "every query is counted, or counted as dropped");
    }
}
