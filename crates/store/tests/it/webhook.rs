use std::time::Duration;

use store::webhook::{
    ATTEMPTS_MAX, AlarmChange, AttemptOutcome, EmitOutcome, NewEvent, Outbox, OutboxKeys,
    PENDING_MAX, TakenDelivery,
};
use store::{Key, Store};

const LEASE: Duration = Duration::from_secs(30);

#[expect(clippy::disallowed_methods, reason = "keys of this test")]
fn keys() -> OutboxKeys {
    let key = |name: &str| Key::raw(format!("test:{{outbox}}:{name}"));
    OutboxKeys {
        targets: key("targets"),
        deliveries: key("deliveries"),
        due: key("due"),
        dead: key("dead"),
        log: key("log"),
        pending: key("pending"),
        alarms: key("alarms"),
        seen: key("seen"),
        cursors: key("cursors"),
        lane: |name| Key::raw(format!("test:{{outbox}}:lane:{name}")),
    }
}

fn outbox(store: &Store) -> Outbox {
    Outbox::new(store, keys())
}

fn event(id: &str, subject: &str) -> NewEvent {
    let body = serde_json::value::to_raw_value(&serde_json::json!({ "id": id })).unwrap();
    NewEvent {
        id: id.to_owned(),
        event: "test.happened".to_owned(),
        subject: subject.to_owned(),
        body,
    }
}

async fn emit(outbox: &Outbox, id: &str, subject: &str) -> EmitOutcome {
    outbox.emit(&event(id, subject), &["wh_1".to_owned()], None).await.unwrap()
}

async fn take(outbox: &Outbox) -> Vec<TakenDelivery> {
    outbox.take(10, LEASE, |_| true).await.unwrap()
}

fn ids(taken: &[TakenDelivery]) -> Vec<&str> {
    let mut ids: Vec<&str> = taken.iter().map(|taken| taken.delivery.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

fn failed() -> AttemptOutcome {
    AttemptOutcome::Failed { status: Some(500), error: "500".to_owned(), retry_after: None }
}

async fn settle(outbox: &Outbox, taken: &TakenDelivery, outcome: &AttemptOutcome) -> bool {
    outbox.settle(taken, outcome, Duration::from_millis(7), 0.5).await.unwrap()
}

testkit::each_store! {
    async fn deliveries_about_one_subject_are_sent_in_order(t: TestStore) {
        let outbox = outbox(&t.store);
        for (id, subject) in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a")] {
            assert_eq!(emit(&outbox, id, subject).await, EmitOutcome::Emitted { full: Vec::new() });
        }
        let first = take(&outbox).await;
        assert_eq!(ids(&first), ["a1.wh_1", "b1.wh_1"]);
        assert!(take(&outbox).await.is_empty(), "both lanes are held");
        let delivered = AttemptOutcome::Delivered { status: 200 };
        for taken in &first {
            let outcome = if taken.delivery.id.starts_with('a') { failed() } else { delivered.clone() };
            assert!(settle(&outbox, taken, &outcome).await);
        }
        // The second about a waits as long as the first is retried.
        assert!(take(&outbox).await.is_empty());
        t.clock.advance(Duration::from_secs(6));
        let again = take(&outbox).await;
        assert_eq!((ids(&again), again[0].delivery.attempts), (vec!["a1.wh_1"], 1));
        assert!(settle(&outbox, &again[0], &delivered).await);
        let second = take(&outbox).await;
        assert_eq!(ids(&second), ["a2.wh_1"]);
        let outcomes: Vec<(String, u32, String)> = outbox.log().await.unwrap().into_iter().rev()
            .map(|row| (row.delivery, row.attempt, row.outcome)).collect();
        assert_eq!(outcomes.last(), Some(&("a1.wh_1".to_owned(), 2, "delivered".to_owned())));
        assert_eq!(outbox.pending().await.unwrap(), [("wh_1".to_owned(), 2)]);
    }

    async fn an_event_is_in_line_once_however_many_instances_emit_it(t: TestStore) {
        let (one, other) = (outbox(&t.store), outbox(&t.another().await));
        assert!(matches!(emit(&one, "a1", "a").await, EmitOutcome::Emitted { .. }));
        assert_eq!(emit(&other, "a1", "a").await, EmitOutcome::Nothing);
        let (mine, others) = (take(&one).await, take(&other).await);
        assert_eq!((mine.len(), others.len()), (1, 0));
        assert!(settle(&one, &mine[0], &AttemptOutcome::Delivered { status: 204 }).await);
        assert_eq!(emit(&other, "a1", "a").await, EmitOutcome::Nothing, "also once it was delivered");
    }

    async fn a_sender_that_dies_loses_its_lease_and_cannot_settle(t: TestStore) {
        let (one, other) = (outbox(&t.store), outbox(&t.another().await));
        emit(&one, "a1", "a").await;
        let lost = take(&one).await;
        t.clock.advance(LEASE);
        let again = take(&other).await;
        assert_eq!(ids(&again), ["a1.wh_1"]);
        assert!(!settle(&one, &lost[0], &AttemptOutcome::Delivered { status: 200 }).await);
        assert!(settle(&other, &again[0], &AttemptOutcome::Delivered { status: 200 }).await);
        assert!(take(&one).await.is_empty());
    }

    async fn a_delivery_is_given_up_after_ten_attempts_and_can_be_sent_again(t: TestStore) {
        let outbox = outbox(&t.store);
        emit(&outbox, "a1", "a").await;
        for attempt in 1..=ATTEMPTS_MAX {
            let taken = take(&outbox).await;
            assert_eq!(ids(&taken), ["a1.wh_1"], "attempt {attempt}");
            assert!(settle(&outbox, &taken[0], &failed()).await);
            t.clock.advance(Duration::from_secs(2 * 86_400));
        }
        assert!(take(&outbox).await.is_empty());
        let dead = outbox.dead().await.unwrap();
        assert_eq!((dead.len(), dead[0].attempts, dead[0].error.as_deref()), (1, 10, Some("500")));
        assert!(outbox.resend("a1.wh_1").await.unwrap());
        assert!(!outbox.resend("a1.wh_1").await.unwrap(), "it is in line already");
        let taken = take(&outbox).await;
        assert_eq!((ids(&taken), taken[0].delivery.attempts), (vec!["a1.wh_1"], 0));
        assert!(outbox.dead().await.unwrap().is_empty());
    }

    async fn an_alarm_is_told_when_it_changes_and_not_before(t: TestStore) {
        let outbox = outbox(&t.store);
        let tell = async |id: &str, change: AlarmChange<'_>| {
            outbox.emit(&event(id, "a"), &["wh_1".to_owned()], Some(change)).await.unwrap()
        };
        assert_eq!(tell("1", AlarmChange::Clear("x")).await, EmitOutcome::Nothing);
        assert!(matches!(tell("2", AlarmChange::Raise("x")).await, EmitOutcome::Emitted { .. }));
        assert_eq!(tell("3", AlarmChange::Raise("x")).await, EmitOutcome::Nothing);
        assert!(matches!(tell("4", AlarmChange::Clear("x")).await, EmitOutcome::Emitted { .. }));
        assert!(outbox.alarms().await.unwrap().is_empty());
        assert_eq!(outbox.pending().await.unwrap(), [("wh_1".to_owned(), 2)]);
    }

    async fn a_target_that_is_full_gets_no_more(t: TestStore) {
        let outbox = outbox(&t.store);
        for n in 0..PENDING_MAX {
            emit(&outbox, &format!("e{n}"), "a").await;
        }
        let full = vec!["wh_1".to_owned()];
        assert_eq!(emit(&outbox, "more", "a").await, EmitOutcome::Emitted { full });
    }
}
