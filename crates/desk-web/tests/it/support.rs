//! What the tests of the desk over HTTP share.

use std::sync::Arc;

use serde_json::{Value, json};
use store::Store;
use tidegate_desk_web::DeskService;
use tidegate_desk_web::config::DeskSettings;
use tokio_util::sync::CancellationToken;
use web::Settings;
use web::auth::{NewToken, Role};
use web::config::{AuthSettings, Values};
use web::service::OpenService;
use web::testing::Fixture;

fn values() -> Values {
    Values::defaults(&[&DeskService])
}

/// The desk on a store, as one instance has it. Limits wait for a busy machine.
pub(crate) fn open(store: &Store, instance: &str) -> OpenService {
    let values = values();
    let settings = DeskSettings {
        limit_timeout: std::time::Duration::from_secs(10),
        ..DeskSettings::read(&values).unwrap()
    };
    let auth = AuthSettings::read(&values).unwrap();
    DeskService::on(store, &settings, &auth, instance).unwrap()
}

/// An instance whose background work runs.
pub(crate) struct Instance {
    pub(crate) web: Fixture,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Instance {
    pub(crate) fn start(store: &Store, name: &str) -> Instance {
        let service = open(store, name);
        let running = Arc::clone(&service.running);
        let web = Fixture::on(store.clone(), Settings::default(), vec![service]);
        let stop = CancellationToken::new();
        let task = tokio::spawn(running.run(web.app.clone(), stop.clone()));
        Instance { web, stop, task }
    }

    /// Ends it in order, as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Ends it as kill -9 does: nothing is written any more.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

pub(crate) fn fixture(store: &Store) -> Fixture {
    Fixture::on(store.clone(), Settings::default(), vec![open(store, "test")])
}

/// A worker's token with a scope.
pub(crate) async fn worker(f: &Fixture, scopes: &[&str]) -> String {
    let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
    let new = NewToken { name: "app".to_owned(), role: Role::Worker, scopes };
    let (_, secret) = f.app.auth().create_token(f.app.store(), new, "the test").await.unwrap();
    secret.reveal().to_owned()
}

pub(crate) async fn put_policy(f: &Fixture, name: &str, body: Value) {
    let got = f.admin(&format!("PUT /api/v1/ratelimit/policies/{name}"), body).await;
    assert!(got.status.is_success(), "{}", got.text);
}

pub(crate) fn check_user(policy: &str, user: &str) -> Value {
    json!({ "identity": { "user": user }, "policies": [policy] })
}

/// Waits until something holds.
pub(crate) async fn wait_until(what: &str, check: impl AsyncFn() -> bool) {
    testkit::until(what, async || check().await.then_some(())).await;
}
