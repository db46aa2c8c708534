//! The policy document in the store: versions, conflicts, changes seen by other instances.

use std::sync::{Arc, Mutex};

use dns::{ClientGroup, Error, Policy, PolicyStore};
use testkit::{each_store, until};
use tokio_util::sync::CancellationToken;

fn with_group(id: &str) -> Policy {
    let group = ClientGroup { id: id.to_owned(), ..ClientGroup::default() };
    Policy { groups: vec![group], ..Policy::default() }
}

each_store! {
    async fn a_change_from_an_old_version_is_refused(t: TestStore) {
        let policies = PolicyStore::new(&t.store, Policy::default());
        let loaded = policies.load().await.unwrap();
        assert_eq!((loaded.version, &loaded.policy), (0, &Policy::default()));
        let saved = policies.save(0, with_group("kids")).await.unwrap();
        assert_eq!(saved.version, 1);
        assert_eq!(policies.load().await.unwrap(), saved);
        match policies.save(0, with_group("late")).await {
            Err(Error::Conflict { expected: 0, current: 1 }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(policies.load().await.unwrap(), saved, "nothing was changed");
        let error = policies.save(1, with_group("Not an id")).await.unwrap_err();
        assert!(error.to_string().starts_with("groups[0].id: "), "{error}");
        assert_eq!(policies.load().await.unwrap(), saved, "nothing was changed");
    }

    async fn the_first_change_starts_from_the_policy_in_force(t: TestStore) {
        let policies = PolicyStore::new(&t.store, Policy::starting());
        assert_eq!(policies.load().await.unwrap().policy, Policy::starting());
        let add = |policy: &mut Policy| {
            policy.rules.push("||ads.example^".to_owned());
            Ok(())
        };
        policies.update(add).await.unwrap();
        let saved = policies.load().await.unwrap();
        assert_eq!((saved.version, &saved.policy.lists), (1, &Policy::starting().lists));
    }

    async fn concurrent_changes_are_all_made(t: TestStore) {
        let policies = PolicyStore::new(&t.store, Policy::default());
        let changes = (0..5).map(|number| {
            let policies = policies.clone();
            async move {
                let add = |policy: &mut Policy| {
                    policy.rules.push(format!("||{number}.example^"));
                    Ok(())
                };
                policies.update(add).await.unwrap();
            }
        });
        futures_util::future::join_all(changes).await;
        let mut rules = policies.load().await.unwrap().policy.rules;
        rules.sort();
        assert_eq!(rules.len(), 5);
    }

    async fn other_instances_follow_at_once(t: TestStore) {
        let policies = PolicyStore::new(&t.store, Policy::default());
        let other = PolicyStore::new(&t.another().await, Policy::default());
        let (seen, cancel) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let following = tokio::spawn({
            let (seen, cancel) = (Arc::clone(&seen), cancel.clone());
            async move { other.follow(0, cancel, |loaded| seen.lock().unwrap().push(loaded.version)).await }
        });
        for version in 1..=3 {
            policies.save(version - 1, with_group("kids")).await.unwrap();
            until("the other instance has the new version", async || {
                (seen.lock().unwrap().last() == Some(&version)).then_some(())
            })
            .await;
        }
        cancel.cancel();
        following.await.unwrap();
    }
}
