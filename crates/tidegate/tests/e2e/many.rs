//! Several instances on one Redis, and on a Cluster of six nodes: what one starts another goes on
//! with, and what one knew when it was killed is not lost.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::{Cluster, RedisServer};

use crate::process::Tidegate;
use crate::wait::{LONG, until};

/// Prefixes of keys that the key browser does not show: those of the frame, and the secrets of services.
const CLOSED: [&str; 7] = [
    "tidegate:",
    "room:signing",
    "room:address-key:",
    "session:",
    "resolver:cookie:secret",
    "resolver:log:key",
    "ha:session:",
];

/// One call; answers status and body.
fn call(gate: &Tidegate, token: &str, what: &str, body: Value) -> (u16, Value) {
    let (method, path) = what.split_once(' ').unwrap();
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("{}{path}", gate.base))
        .header("content-type", "application/json");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut answer = agent.run(request.body(body).unwrap()).unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// A call that must work.
#[track_caller]
fn well(gate: &Tidegate, token: &str, what: &str, body: Value) -> Value {
    let (status, answer) = call(gate, token, what, body);
    assert!((200..300).contains(&status), "{what}: {status} {answer}");
    answer
}

/// The main story of the room and of jobs, told to two instances, one of which is killed half way.
fn story(url: &str, nodes: &[RedisServer]) {
    let mut one = Tidegate::start(url, &[]);
    let two = Tidegate::start(url, &[]);
    let admin = two.token();

    // A queue made at one is there at two; visitors join at both and stand in one line.
    let new = json!({"id": "sale", "max_active": 1, "target_url": "https://shop.example/",
        "admission": {"count": 600, "per_seconds": 60}});
    well(&one, &admin, "POST /api/v1/admin/queues", new);
    let join = |gate: &Tidegate| {
        well(gate, "", "POST /api/v1/queues/sale/enqueue", json!({}))["token"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (ann, bob, eve) = (join(&one), join(&two), join(&one));
    let status =
        |gate: &Tidegate, who: &str| well(gate, who, "GET /api/v1/queues/sale/status", Value::Null);
    until("Ann may come in", LONG, || status(&two, &ann), |place| place["status"] == "admitted");
    assert_eq!(status(&one, &bob)["position"], 1);
    assert_eq!(status(&two, &eve)["position"], 2);
    let session = well(&one, &ann, "POST /api/v1/queues/sale/start-session", Value::Null);

    // A job dispatched at two is claimed at one; another stays in line.
    well(&two, &admin, "POST /api/v1/jobs", json!({"type": "mail", "id": "first"}));
    well(&two, &admin, "POST /api/v1/jobs", json!({"type": "mail", "id": "second"}));
    let claim = json!({"worker_id": "w1", "types": ["mail"], "limit": 1, "lease_ms": 600_000});
    let lease = well(&one, &admin, "POST /api/v1/jobs/claim", claim);
    let lease = &lease["items"][0];
    assert_eq!(lease["job"]["id"], "first", "{lease}");

    // One is killed without a word. Everything goes on at two.
    one.signal("-KILL");
    one.wait();
    let id = session["session_id"].as_str().unwrap();
    well(&two, &ann, &format!("POST /api/v1/sessions/{id}/complete"), Value::Null);
    until("Bob may come in", LONG, || status(&two, &bob), |place| place["status"] == "admitted");
    assert_eq!(status(&two, &eve)["position"], 1);
    let session = well(&two, &bob, "POST /api/v1/queues/sale/start-session", Value::Null);
    assert_eq!(session["status"], "active");
    let stats = well(&two, &admin, "GET /api/v1/admin/queues/sale/stats", Value::Null);
    assert_eq!(stats["total_active"], 1, "never more than the limit: {stats}");

    let done = json!({"worker_id": "w1", "token": lease["token"], "result": {"sent": true}});
    well(&two, &admin, "POST /api/v1/jobs/first/complete", done);
    let claim = json!({"worker_id": "w2", "types": ["mail"], "limit": 5, "wait_ms": 10_000});
    let lease = well(&two, &admin, "POST /api/v1/jobs/claim", claim);
    assert_eq!(lease["items"].as_array().map(Vec::len), Some(1), "{lease}");
    assert_eq!(lease["items"][0]["job"]["id"], "second");
    // Its scheduler takes over from the one that was killed.
    let soon = json!({"type": "later", "id": "third", "delay_ms": 500});
    well(&two, &admin, "POST /api/v1/jobs", soon);
    until(
        "a delayed job comes due under a new leader",
        LONG,
        || well(&two, &admin, "GET /api/v1/jobs/third", Value::Null),
        |job| job["status"] == "waiting",
    );

    // The key browser sees the keys of every node. Some come and go while it reads: those that were there before
    // and after are in it, and nothing that was never there.
    let (_, seen, _) = until(
        "the key browser sees the keys of every node",
        LONG,
        || (open_keys(nodes), keys_seen(&two, &admin), open_keys(nodes)),
        |(before, seen, after)| {
            before.intersection(after).all(|key| seen.contains(key))
                && seen.iter().all(|key| before.contains(key) || after.contains(key))
        },
    );
    for part in ["sale", "jobs:data:first", "jobs:data:second"] {
        assert!(seen.iter().any(|key| key.contains(part)), "no key with {part}: {seen:?}");
    }
    let key = seen.iter().find(|key| key.ends_with("jobs:data:first")).unwrap();
    let path = format!("GET /api/v1/store/key?key={}", key.replace('{', "%7B").replace('}', "%7D"));
    assert_eq!(well(&two, &admin, &path, Value::Null)["type"], "string");
}

/// The keys of all nodes, read from the servers themselves, without those closed to the key browser.
fn open_keys(nodes: &[RedisServer]) -> BTreeSet<String> {
    nodes
        .iter()
        .flat_map(|node| node.query::<Vec<String>>(&["KEYS", "*"]).unwrap())
        .filter(|key| !CLOSED.iter().any(|prefix| key.starts_with(prefix)))
        .collect()
}

/// Every key, page by page, once.
fn keys_seen(gate: &Tidegate, admin: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let path = format!("GET /api/v1/store/keys?limit=500&cursor={cursor}");
        let page = well(gate, admin, &path, Value::Null);
        let keys = page["items"].as_array().unwrap();
        seen.extend(keys.iter().map(|key| key["key"].as_str().unwrap().to_owned()));
        page["next_cursor"].as_str().unwrap_or("0").clone_into(&mut cursor);
        if cursor == "0" {
            return seen;
        }
    }
}

#[test]
fn two_instances_on_one_redis_share_everything_and_one_may_die() {
    let redis = RedisServer::start();
    story(&redis.url(), std::slice::from_ref(&redis));
}

#[test]
fn two_instances_on_a_cluster_share_everything_and_one_may_die() {
    let mut cluster = Cluster::start();
    story(&cluster.url(), cluster.nodes());
}
