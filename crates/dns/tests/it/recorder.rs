//! What of answered queries reaches the log.

use dns::{
    CacheTier, Labels, LogFilter, Policy, QueryBatch, QueryLog, QueryLogOptions, QueryOutcome,
    QueryProtocol, QueryQueue, QueryRecord, QueryRecorder,
};
use store::Millis;

/// Records four queries of two clients in two groups under a policy; returns client and name of what
/// was logged, oldest first.
fn logged(policy: serde_json::Value) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let log = QueryLog::open(QueryLogOptions::new(folder.path().to_owned())).unwrap();
    let (queue, labels) = (QueryQueue::default(), Labels::default());
    let policy: Policy = serde_json::from_value(policy).unwrap();
    let recorder = QueryRecorder::new(queue.clone(), labels.clone(), log.clone(), [7; 32], &policy);
    let mut batch = QueryBatch::default();
    for (client, id, group, name, outcome) in [
        (
            [192, 168, 1, 20],
            "tablet",
            "kids",
            &b"\x05games\x07example\x00"[..],
            QueryOutcome::Upstream,
        ),
        ([192, 168, 1, 20], "tablet", "kids", b"\x03ads\x07example\x00", QueryOutcome::Blocked),
        ([10, 0, 0, 5], "", "default", b"\x03www\x04bank\x07example\x00", QueryOutcome::Cached),
        ([10, 0, 0, 5], "", "default", b"\x04news\x07example\x00", QueryOutcome::Blocked),
    ] {
        let record = QueryRecord {
            at: Millis(1),
            client: client.into(),
            client_id: labels.label(id),
            group: labels.label(group),
            list: labels.label(""),
            upstream: labels.label(""),
            qtype: 1,
            rcode: 0,
            outcome,
            tier: CacheTier::None,
            protocol: QueryProtocol::Udp,
            duration_us: 10,
        };
        batch.push(record, name, "");
    }
    queue.extend(&batch);
    let mut seen = 0;
    recorder.drain(&mut batch, |_, _, _, count| seen += count);
    assert_eq!(seen, 4, "statistics see every query");
    let mut rows = log.search(&LogFilter::default(), None, 100).rows;
    rows.reverse();
    rows.into_iter().map(|row| (row.client.to_string(), row.name.to_string())).collect()
}

fn names(policy: serde_json::Value) -> Vec<String> {
    logged(policy).into_iter().map(|(_, name)| name).collect()
}

#[test]
fn a_group_is_logged_as_its_mode_says() {
    use serde_json::json;
    let all = ["games.example", "ads.example", "www.bank.example", "news.example"];
    assert_eq!(names(json!({})), all);
    let modes = |mode: &str| json!({ "groups": [{ "id": "kids", "log": mode }] });
    assert_eq!(names(modes("blocked")), all[1..]);
    assert_eq!(names(modes("nothing")), all[2..]);
    let nobody = json!({ "groups": [{ "id": "kids", "log": "nothing" }, { "id": "default", "log": "blocked" }] });
    assert_eq!(names(nobody), ["news.example"]);
}

#[test]
fn excluded_names_and_clients_are_not_logged() {
    use serde_json::json;
    let log = |log: serde_json::Value| names(json!({ "log": log }));
    assert_eq!(log(json!({ "exclude_names": ["bank.example"] })).len(), 3);
    assert_eq!(log(json!({ "exclude_names": ["example"] })), Vec::<String>::new());
    assert_eq!(log(json!({ "exclude_clients": ["10.0.0.0/8"] })), ["games.example", "ads.example"]);
    assert_eq!(log(json!({ "exclude_clients": ["tablet"] })), ["www.bank.example", "news.example"]);
    assert_eq!(log(json!({ "sample_one_in": 2 })), ["games.example", "www.bank.example"]);
}

#[test]
fn addresses_are_kept_in_the_form_the_policy_asks_for() {
    use serde_json::json;
    let clients = |form: &str| {
        let rows = logged(json!({ "log": { "addresses": form } }));
        (rows[0].0.clone(), rows[2].0.clone())
    };
    assert_eq!(clients("full"), ("192.168.1.20".to_owned(), "10.0.0.5".to_owned()));
    assert_eq!(clients("truncated"), ("192.168.1.0".to_owned(), "10.0.0.0".to_owned()));
    let (one, two) = clients("hashed");
    assert_eq!((one.len(), one == two), (16, false));
    assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
    assert_eq!(clients("hashed").0, one, "the same under the same key");
}

#[test]
fn records_that_are_alike_are_told_once_and_logged_each() {
    let folder = tempfile::tempdir().unwrap();
    let log = QueryLog::open(QueryLogOptions::new(folder.path().to_owned())).unwrap();
    let (queue, labels) = (QueryQueue::default(), Labels::default());
    let recorder =
        QueryRecorder::new(queue.clone(), labels.clone(), log.clone(), [7; 32], &Policy::default());
    let mut batch = QueryBatch::default();
    let record = |at: i64, outcome: QueryOutcome| QueryRecord {
        at: Millis(at),
        client: [192, 168, 1, 20].into(),
        client_id: labels.label(""),
        group: labels.label("default"),
        list: labels.label(""),
        upstream: labels.label(""),
        qtype: 1,
        rcode: 0,
        outcome,
        tier: CacheTier::Memory,
        protocol: QueryProtocol::Udp,
        duration_us: 0,
    };
    const HOUR_MS: i64 = 3_600_000;
    for at in [HOUR_MS - 2, HOUR_MS - 1, HOUR_MS, HOUR_MS + 1, HOUR_MS + 2] {
        batch.push(record(at, QueryOutcome::Cached), b"\x01a\x00", "192.0.2.1");
        batch.push(record(at, QueryOutcome::Blocked), b"\x01a\x00", "");
        batch.push(record(at, QueryOutcome::Cached), b"\x01b\x00", "192.0.2.2");
    }
    queue.extend(&batch);
    let mut told = Vec::new();
    recorder.drain(&mut batch, |record, name, is_kept, count| {
        told.push((record.at.0, name.to_string(), record.outcome.as_str(), is_kept, count));
    });
    let expected = |at: i64, count: u64| {
        [("a", "cached"), ("a", "blocked"), ("b", "cached")]
            .map(|(name, outcome)| (at, name.to_owned(), outcome, true, count))
    };
    // What was asked in another hour is counted in another bucket.
    assert_eq!(told, [expected(HOUR_MS - 2, 2), expected(HOUR_MS, 3)].concat());
    let rows = log.search(&LogFilter::default(), None, 100).rows;
    assert_eq!(rows.len(), 15);
    assert!(rows.iter().all(|row| &*row.client == "192.168.1.20"));
    let newest: Vec<&str> = rows.iter().take(3).map(|row| &*row.answer).collect();
    assert_eq!(newest, ["192.0.2.2", "", "192.0.2.1"]);
    assert_eq!(recorder.stats().seen, 15);
}
