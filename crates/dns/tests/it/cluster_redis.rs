//! The cache on a real Cluster: names choose their slots, metadata shares one. Redis only, because
//! the other stores have no Cluster.

use dns::{L1, L1Options, StoredEntry, wire::AnswerKind};
use testkit::TestStore;

use crate::support::{question, run, stored};

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_works_on_a_cluster() {
    if std::env::var("STORES").is_ok_and(|stores| !stores.is_empty() && !stores.contains("redis")) {
        return;
    }
    let t = TestStore::cluster().await;
    let l1 = L1::new(&t.store, L1Options { max_keys: 40, ..L1Options::default() });
    let now = t.store.now();
    let names = (0..50).map(|number| format!("n{number}.{{dnsmeta}}.test"));
    let names: Vec<_> = names.chain((0..50).map(|number| format!("m{number}.test"))).collect();
    for name in &names {
        let asked = question(name);
        let answer = stored(&asked, 600, 1, now);
        l1.put(&asked, AnswerKind::Plain, &answer, &StoredEntry::default(), now).await.unwrap();
        assert!(l1.get(&asked, now).await.unwrap().plain.is_some(), "{name}");
    }
    for name in &names[60..] {
        l1.add_hits(&question(name), 2);
    }
    assert_eq!(l1.flush_hits().await.unwrap(), 40);
    assert_eq!(l1.count_keys(now).await.unwrap(), 100, "counted on every master");
    let lock = l1.lock_refresh(&question("n1.test")).await.unwrap().unwrap();
    assert!(l1.unlock_refresh(lock).await.unwrap());

    let evicted = l1.evict(now).await.unwrap();
    assert_eq!(evicted.len(), 60);
    for name in &names[60..] {
        assert!(!evicted.contains(&question(name)), "{name} has hits");
    }
    assert_eq!(run::<u64>(&t.store, &["ZCARD", "{dnsmeta}:expiry:index"]).await, 40);
    assert_eq!(l1.reconcile().await.unwrap(), 0);
    assert_eq!(l1.clear().await.unwrap(), 40, "answers, without counters and index");
    assert_eq!(l1.count_keys(now).await.unwrap(), 0);
}
