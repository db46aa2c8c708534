//! Limits beside programs that use the schema's own commands, on a real server: those programs talk
//! to it over connections of their own.

use desk::{Identity, limit::LimitAlgorithm};
use store::redis::{self, AsyncCommands};
use testkit::{RedisServer, standalone_keys};

use crate::support::{SECOND, limiter, policy};

/// The schema's own check: what is removed and counted is not what is added at the same moment.
async fn seed_check(store: &mut store::Store, key: &str, sliding: bool, number: usize) -> bool {
    let now = store.now().0;
    let old = now - 60_000;
    if sliding {
        let (_, count): (i64, i64) = redis::pipe()
            .atomic()
            .zrembyscore(key, 0, old)
            .zcard(key)
            .query_async(store)
            .await
            .unwrap();
        if count >= 100 {
            return false;
        }
        let _: (i64,) = redis::pipe()
            .zadd(key, format!("{now}-{number}"), now)
            .query_async(store)
            .await
            .unwrap();
        return true;
    }
    let (_, _, count): (i64, i64, i64) = redis::pipe()
        .atomic()
        .zrembyscore(key, 0, old)
        .zadd(key, now.to_string(), now)
        .zcard(key)
        .query_async(store)
        .await
        .unwrap();
    count <= 100
}

/// Proof that the test of exactness can fail: the same hits by the schema's own commands.
#[test]
fn the_schemas_own_commands_allow_more_than_the_limit() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        for (sliding, key) in [(true, "ha:sliding_limit:a"), (false, "ha:rate_limit:a")] {
            let mut tasks = tokio::task::JoinSet::new();
            let mut connections = Vec::new();
            for _ in 0..4 {
                connections.push(store::Store::open(&server.url()).await.unwrap());
            }
            for number in 0..1_000 {
                let mut store = connections[number % 4].clone();
                tasks.spawn(async move { seed_check(&mut store, key, sliding, number).await });
            }
            let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
            assert!(allowed > 100, "{allowed} by {key}");
        }
    });
}

standalone_keys! {
    async fn hits_of_a_program_with_the_schemas_commands_count_and_ours_are_seen_by_it(t: TestStore) {
        let limiter = limiter(&t.store);
        let mut store = t.store.clone();
        let address = Identity::ip([192, 168, 1, 100].into());
        for (algorithm, key) in [
            (LimitAlgorithm::Sliding, "ha:sliding_limit:192.168.1.100"),
            (LimitAlgorithm::Fixed, "ha:rate_limit:192.168.1.100"),
        ] {
            let policy = policy("", algorithm, 5);
            for number in 0..2 {
                let now = t.clock.now().0 + number;
                store.zadd::<_, _, _, ()>(key, format!("{now}"), now).await.unwrap();
                store.expire::<_, ()>(key, 60).await.unwrap();
            }
            t.clock.advance(SECOND);
            let decision = limiter.check(&address, &[&policy], 1).await.unwrap();
            assert_eq!((decision.allowed, decision.limits[0].remaining), (true, 2), "{key}");
            let seen: Vec<(String, f64)> = store.zrange_withscores(key, 0, -1).await.unwrap();
            assert_eq!(seen.len(), 3, "{key}");
            assert_eq!(seen[2].1 as i64, t.clock.now().0, "the score is Date.now()");
            let ttl: i64 = store.ttl(key).await.unwrap();
            assert!(ttl > 0 && ttl <= 61, "{key}: {ttl}");
        }
    }
}
