//! Leases and leaders.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use std::time::Duration;

use store::{
    Key, Store,
    lease::{FencedLease, LeaderCandidate, LeaseGrant, LeaseOutcome},
    redis::AsyncCommands,
};
use testkit::each_store::START;
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(30);

fn lease(store: &Store, owner: &str) -> FencedLease {
    FencedLease::new(store, Key::raw("lock"), owner, TTL)
}

async fn take(lease: &FencedLease) -> Option<LeaseGrant> {
    match lease.take().await.unwrap() {
        LeaseOutcome::Held(held) => Some(held),
        LeaseOutcome::Busy { .. } => None,
    }
}

testkit::each_store! {
    async fn one_owner_at_a_time(t: TestStore) {
        let (a, b) = (lease(&t.store, "a"), lease(&t.another().await, "b"));
        let held = take(&a).await.unwrap();
        assert_eq!(held.until, START + TTL);
        assert_eq!(b.take().await.unwrap(), LeaseOutcome::Busy { owner: "a".to_owned(), until: held.until });

        t.clock.advance(TTL - Duration::from_millis(1));
        assert_eq!(take(&b).await, None, "held to the last millisecond");
        t.clock.advance(Duration::from_millis(1));
        let next = take(&b).await.unwrap();
        assert!(next.token > held.token);
        assert_eq!(a.renew(held).await.unwrap(), None, "a late owner cannot renew");
        assert!(!a.release(held).await.unwrap(), "nor release");
        assert_eq!(take(&a).await, None);
    }

    async fn taking_again_keeps_the_token(t: TestStore) {
        let a = lease(&t.store, "a");
        let first = take(&a).await.unwrap();
        t.clock.advance(Duration::from_secs(10));
        let second = take(&a).await.unwrap();
        assert_eq!(second, LeaseGrant { token: first.token, until: START + Duration::from_secs(40) });
    }

    async fn renewing_holds_on(t: TestStore) {
        let (a, b) = (lease(&t.store, "a"), lease(&t.store, "b"));
        let mut held = take(&a).await.unwrap();
        for _ in 0..5 {
            t.clock.advance(Duration::from_secs(20));
            held = a.renew(held).await.unwrap().unwrap();
            assert_eq!(take(&b).await, None);
        }
        t.clock.advance(TTL);
        assert_eq!(a.renew(held).await.unwrap(), None, "what ran out is not revived");
    }

    async fn releasing_frees_at_once_and_twice_does_no_harm(t: TestStore) {
        let (a, b) = (lease(&t.store, "a"), lease(&t.store, "b"));
        let held = take(&a).await.unwrap();
        assert!(a.release(held).await.unwrap());
        assert!(a.release(held).await.unwrap());
        let next = take(&b).await.unwrap();
        assert!(next.token > held.token);
        assert!(!a.release(held).await.unwrap());
        assert_eq!(take(&a).await, None);
    }

    async fn tokens_grow_even_after_the_key_is_gone(t: TestStore) {
        let mut last = 0;
        for round in 0..20 {
            let owner = if round % 2 == 0 { "a" } else { "b" };
            let held = take(&lease(&t.store, owner)).await.unwrap();
            assert!(held.token > last, "{held:?} after {last}");
            last = held.token;
            if round % 3 == 0 {
                t.clock.advance(TTL);
                t.store.clone().del::<_, ()>("lock").await.unwrap();
            } else {
                lease(&t.store, owner).release(held).await.unwrap();
            }
        }
    }

    async fn of_many_at_once_one_gets_it(t: TestStore) {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..32 {
            let lease = lease(&t.store, &number.to_string());
            tasks.spawn(async move { take(&lease).await.is_some() });
        }
        let won = tasks.join_all().await.into_iter().filter(|won| *won).count();
        assert_eq!(won, 1);
    }

    async fn a_leader_leads_until_its_lease_runs_out(t: TestStore) {
        let a = LeaderCandidate::new(lease(&t.store, "a"));
        let b = LeaderCandidate::new(lease(&t.store, "b"));
        let first = a.tick().await.unwrap().unwrap();
        assert_eq!(b.tick().await.unwrap(), None);
        assert_eq!(a.leading(), Some(first));

        t.clock.advance(Duration::from_secs(20));
        assert_eq!(a.tick().await.unwrap().unwrap().token, first.token, "renewed");
        t.clock.advance(TTL);
        assert_eq!(a.leading(), None, "by its own clock, without asking");
        let second = b.tick().await.unwrap().unwrap();
        assert!(second.token > first.token);
        assert_eq!(a.tick().await.unwrap(), None);

        b.resign().await;
        assert_eq!(b.leading(), None);
        assert!(a.tick().await.unwrap().is_some());
    }

    async fn a_cancelled_leader_gives_the_lease_back(t: TestStore) {
        let a = std::sync::Arc::new(LeaderCandidate::new(lease(&t.store, "a")));
        let mut changes = a.watch();
        let cancel = CancellationToken::new();
        let task = tokio::spawn({
            let (a, cancel) = (a.clone(), cancel.clone());
            async move { a.run(cancel).await }
        });
        changes.wait_for(Option::is_some).await.unwrap();
        cancel.cancel();
        task.await.unwrap();
        assert!(take(&lease(&t.store, "b")).await.is_some());
    }
}
