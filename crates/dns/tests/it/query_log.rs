//! The query logs of several instances on one store.

use std::time::Duration;

use dns::{
    CacheTier, InstanceInfo, LogFilter, LoggedQuery, QueryLog, QueryLogOptions, QueryOutcome,
    QueryProtocol, SharedLog,
};
use store::{Millis, Store};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

fn row(at: i64, client: &str, name: &str) -> LoggedQuery {
    LoggedQuery {
        number: 0,
        at: Millis(at),
        client: client.into(),
        client_id: "".into(),
        group: "default".into(),
        name: name.into(),
        qtype: 1,
        rcode: 0,
        outcome: QueryOutcome::Upstream,
        tier: CacheTier::None,
        protocol: QueryProtocol::Udp,
        list: "".into(),
        upstream: "udp://192.0.2.1:53".into(),
        answer: "192.0.2.7".into(),
        duration_us: 1_500,
    }
}

/// An instance with a log of its own, which answers others while it lives.
struct Instance {
    shared: SharedLog,
    log: QueryLog,
    cancel: CancellationToken,
    tasks: TaskTracker,
    _folder: tempfile::TempDir,
}

impl Instance {
    async fn start(store: &Store, name: &str) -> Self {
        let instance = Self::silent(store, name).await;
        let (shared, cancel) = (instance.shared.clone(), instance.cancel.clone());
        instance.tasks.spawn(async move { shared.run(cancel).await });
        instance
    }

    /// One that is announced and answers nothing.
    async fn silent(store: &Store, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = QueryLog::open(QueryLogOptions::new(folder.path().to_owned())).unwrap();
        let shared = SharedLog::new(store, name, log.clone());
        let seen_ms = store.now().0;
        let info = InstanceInfo { name: name.to_owned(), seen_ms, ..InstanceInfo::default() };
        shared.announce(&info).await.unwrap();
        let (cancel, tasks) = (CancellationToken::new(), TaskTracker::new());
        Self { shared, log, cancel, tasks, _folder: folder }
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

const WAIT: Duration = Duration::from_secs(20);

/// Everything that fits, page by page, once the other instance listens.
async fn search(from: &Instance, filter: &LogFilter, limit: usize) -> Vec<(String, String)> {
    let (mut found, mut position) = (Vec::new(), None);
    loop {
        let page = from.shared.search(filter, position.as_ref(), limit, WAIT).await;
        assert!(page.silent.is_empty(), "{:?} did not answer", page.silent);
        found.extend(page.rows.into_iter().map(|row| (row.instance, row.row.name.to_string())));
        position = page.next;
        if position.is_none() {
            return found;
        }
    }
}

async fn wait_until_heard(from: &Instance) {
    let heard = async {
        loop {
            let page = from
                .shared
                .search(&LogFilter::default(), None, 1, Duration::from_millis(300))
                .await;
            if page.silent.is_empty() {
                return;
            }
        }
    };
    tokio::time::timeout(WAIT, heard).await.unwrap();
}

testkit::each_store! {
    async fn a_search_on_one_instance_covers_all(t: TestStore) {
        let one = Instance::start(&t.store, "one").await;
        let two = Instance::start(&t.store, "two").await;
        wait_until_heard(&one).await;
        wait_until_heard(&two).await;
        one.log.append((0..50).map(|n| row(n * 2, "10.0.0.1", &format!("a{n}.example"))).collect());
        two.log.append((0..50).map(|n| row(n * 2 + 1, "10.0.0.2", &format!("b{n}.example"))).collect());
        let all = search(&one, &LogFilter::default(), 7).await;
        let expected: Vec<(String, String)> = (0..50).rev().flat_map(|n| {
            [("two".to_owned(), format!("b{n}.example")), ("one".to_owned(), format!("a{n}.example"))]
        }).collect();
        assert_eq!(all, expected, "newest first, each once, whatever the pages");
        let filter = LogFilter { client: Some("10.0.0.2".to_owned()), ..LogFilter::default() };
        assert_eq!(search(&one, &filter, 1_000).await.len(), 50);
        assert_eq!(search(&two, &filter, 1_000).await.len(), 50);
        one.stop().await;
        two.stop().await;
    }

    async fn a_client_is_deleted_on_every_instance(t: TestStore) {
        let one = Instance::start(&t.store, "one").await;
        let two = Instance::start(&t.store, "two").await;
        wait_until_heard(&one).await;
        for instance in [&one, &two] {
            instance.log.append(vec![row(1, "10.0.0.1", "a.example"), row(2, "10.0.0.2", "b.example")]);
        }
        assert_eq!(one.shared.delete_client("10.0.0.1", WAIT).await, (2, vec![]));
        let left = search(&one, &LogFilter::default(), 100).await;
        assert!(left.iter().all(|(_, name)| name == "b.example") && left.len() == 2, "{left:?}");
        one.stop().await;
        two.stop().await;
    }

    async fn a_clear_empties_the_log_of_every_instance(t: TestStore) {
        let one = Instance::start(&t.store, "one").await;
        let two = Instance::start(&t.store, "two").await;
        wait_until_heard(&one).await;
        for instance in [&one, &two] {
            instance.log.append(vec![row(1, "10.0.0.1", "a.example"), row(2, "10.0.0.2", "b.example")]);
            instance.log.flush(Millis(3)).unwrap();
            instance.log.append(vec![row(3, "10.0.0.3", "c.example")]);
        }
        assert_eq!(one.shared.clear(WAIT).await, (6, vec![]));
        assert_eq!(search(&two, &LogFilter::default(), 100).await, vec![]);
        two.log.append(vec![row(4, "10.0.0.4", "d.example")]);
        assert_eq!(search(&one, &LogFilter::default(), 100).await.len(), 1, "it goes on");
        one.stop().await;
        two.stop().await;
    }

    async fn an_instance_that_does_not_answer_is_named(t: TestStore) {
        let one = Instance::start(&t.store, "one").await;
        let gone = Instance::silent(&t.store, "gone").await;
        one.log.append(vec![row(1, "10.0.0.1", "a.example")]);
        let page = one.shared.search(&LogFilter::default(), None, 10, Duration::from_millis(200)).await;
        assert_eq!((page.rows.len(), page.silent), (1, vec!["gone".to_owned()]));
        gone.shared.leave().await.unwrap();
        let page = one.shared.search(&LogFilter::default(), None, 10, WAIT).await;
        assert!(page.silent.is_empty());
        one.stop().await;
        gone.stop().await;
    }

    async fn what_another_writer_says_on_the_channel_is_ignored(t: TestStore) {
        let one = Instance::start(&t.store, "one").await;
        let two = Instance::start(&t.store, "two").await;
        wait_until_heard(&one).await;
        let bad = ["", "{}", "{\"id\":\"../x\",\"from\":\"x\",\"request\":{\"DeleteClient\":{\"client\":\"a\"}}}"];
        for text in bad {
            crate::support::run::<i64>(&t.store, &["PUBLISH", "resolver:search", text]).await;
        }
        crate::support::run::<i64>(&t.store, &["HSET", "resolver:instances", "junk", "not json"]).await;
        two.log.append(vec![row(1, "10.0.0.1", "a.example")]);
        assert_eq!(search(&one, &LogFilter::default(), 10).await.len(), 1);
        one.stop().await;
        two.stop().await;
    }
}
