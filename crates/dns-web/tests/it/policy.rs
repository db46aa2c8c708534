//! The policy over HTTP: what is put in place holds for the next query.

use serde_json::{Value, json};

use crate::support::{Server, rcode_of};

testkit::each_store! {
    async fn a_rule_blocks_until_it_is_removed(t: TestStore) {
        let s = Server::start(&t).await;
        assert_eq!(rcode_of(&s.ask("ads.example").await), 0);
        let made = s.f.admin("POST /api/v1/dns/rules", json!({ "rule": "||ads.example^" })).await;
        assert_eq!(made.status, 200, "{}", made.text);
        let blocked = s.ask("tracker.ads.example").await;
        assert_eq!(blocked[blocked.len() - 4..], [0, 0, 0, 0], "the null address");
        let why = s.f.admin("GET /api/v1/dns/why?name=ads.example", Value::Null).await.json();
        assert_eq!(why["outcome"], "blocked", "{why}");
        let again = s.f.admin("POST /api/v1/dns/rules", json!({ "rule": "||ads.example^" })).await;
        assert_eq!(again.status, 200);
        let listed = s.f.admin("GET /api/v1/dns/rules", Value::Null).await.json();
        assert_eq!(listed["items"], json!([{ "rule": "||ads.example^", "group": null }]));
        let gone = s.f.admin("DELETE /api/v1/dns/rules?rule=%7C%7Cads.example%5E", Value::Null).await;
        assert_eq!(gone.status, 200, "{}", gone.text);
        let unknown = s.f.admin("DELETE /api/v1/dns/rules?rule=%7C%7Cads.example%5E", Value::Null).await;
        assert_eq!(unknown.status, 404);
        let free = s.ask("tracker.ads.example").await;
        assert_eq!(free[free.len() - 4..], [192, 0, 2, 7]);
        s.stop().await;
    }

    async fn a_pause_and_a_timed_rule_end_what_lists_and_rules_say(t: TestStore) {
        let s = Server::start(&t).await;
        s.f.admin("POST /api/v1/dns/rules", json!({ "rule": "||ads.example^" })).await;
        let paused = s.f.admin("POST /api/v1/dns/pauses", json!({ "duration_seconds": 600 })).await;
        assert_eq!(paused.status, 200, "{}", paused.text);
        let free = s.ask("ads.example").await;
        assert_eq!(free[free.len() - 4..], [192, 0, 2, 7], "nothing is filtered");
        let resumed = s.f.admin("DELETE /api/v1/dns/pauses", Value::Null).await.json();
        assert_eq!(resumed["ended"], 1);
        let blocked = s.ask("ads.example").await;
        assert_eq!(blocked[blocked.len() - 4..], [0, 0, 0, 0]);
        let body = json!({ "name": "ads.example", "action": "allow", "duration_seconds": 60 });
        let timed = s.f.admin("POST /api/v1/dns/timed-rules", body).await;
        assert_eq!(timed.status, 200, "{}", timed.text);
        let free = s.ask("ads.example").await;
        assert_eq!(free[free.len() - 4..], [192, 0, 2, 7]);
        let id = timed.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(s.f.admin(&format!("DELETE /api/v1/dns/timed-rules/{id}"), Value::Null).await.status, 200);
        let blocked = s.ask("ads.example").await;
        assert_eq!(blocked[blocked.len() - 4..], [0, 0, 0, 0]);
        s.stop().await;
    }

    async fn groups_clients_lists_and_records_are_put_listed_and_removed(t: TestStore) {
        let s = Server::start(&t).await;
        for (path, body) in [
            ("lists/own", json!({ "url": "embedded:default" })),
            ("groups/kids", json!({ "name": "Kids", "rules": ["||video.example^"], "lists": ["own"] })),
            ("clients/tablet", json!({ "addresses": ["127.0.0.1"], "group": "kids" })),
        ] {
            let made = s.f.admin(&format!("PUT /api/v1/dns/{path}"), body).await;
            assert_eq!(made.status, 200, "{path}: {}", made.text);
        }
        let blocked = s.ask("video.example").await;
        assert_eq!(blocked[blocked.len() - 4..], [0, 0, 0, 0], "this client is in the group");
        let record = json!({ "name": "printer.home.arpa", "type": "A", "value": "192.168.1.9" });
        assert_eq!(s.f.admin("POST /api/v1/dns/records", record).await.status, 200);
        let local = s.ask("printer.home.arpa").await;
        assert_eq!(local[local.len() - 4..], [192, 168, 1, 9]);
        let refused = s.f.admin("DELETE /api/v1/dns/groups/default", Value::Null).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (409, "DEFAULT_GROUP".to_owned()));
        for path in ["groups/kids", "lists/own", "clients/tablet"] {
            let gone = s.f.admin(&format!("DELETE /api/v1/dns/{path}"), Value::Null).await;
            assert_eq!(gone.status, 200, "{path}: {}", gone.text);
            let gone = s.f.admin(&format!("DELETE /api/v1/dns/{path}"), Value::Null).await;
            assert_eq!(gone.status, 404, "{path}: {}", gone.text);
        }
        let free = s.ask("video.example").await;
        assert_eq!(free[free.len() - 4..], [192, 0, 2, 7]);
        s.stop().await;
    }

    async fn bad_parts_are_refused_with_field_and_reason_and_nothing_changes(t: TestStore) {
        let s = Server::start(&t).await;
        for (what, body, field) in [
            ("PUT /api/v1/dns/lists/own", json!({ "url": "ftp://x" }), "lists[1].url"),
            ("PUT /api/v1/dns/groups/kids", json!({ "lists": ["none"] }), "groups[0].lists[0]"),
            ("PUT /api/v1/dns/clients/a", json!({ "addresses": ["300.1.1.1"] }), "clients[0].addresses[0]"),
            ("POST /api/v1/dns/rules", json!({ "rule": "||a^", "group": "none" }), "group"),
            ("POST /api/v1/dns/pauses", json!({ "duration_seconds": 0 }), "duration_seconds"),
            ("POST /api/v1/dns/timed-rules", json!({ "name": "a..b", "action": "block", "duration_seconds": 1 }), "name"),
        ] {
            let refused = s.f.admin(what, body).await;
            assert_eq!(refused.status, 400, "{what}: {}", refused.text);
            assert_eq!(refused.json()["error"]["details"]["field"], field, "{what}: {}", refused.text);
        }
        let policy = s.f.admin("GET /api/v1/dns/policy", Value::Null).await.json();
        assert_eq!(policy["version"], 0, "nothing was saved");
        s.stop().await;
    }

    async fn a_document_is_planned_applied_and_kept_from_being_overwritten(t: TestStore) {
        let s = Server::start(&t).await;
        let policy = json!({ "rules": ["||ads.example^"] });
        let plan = s.f.admin("POST /api/v1/dns/policy/plan", json!({ "policy": policy })).await.json();
        assert_eq!(plan["differences"][1]["field"], "rules[0]", "{plan}");
        let body = json!({ "version": plan["version"], "policy": policy });
        let saved = s.f.admin("PUT /api/v1/dns/policy", body.clone()).await;
        assert_eq!((saved.status.as_u16(), &saved.json()["version"]), (200, &json!(1)), "{}", saved.text);
        let late = s.f.admin("PUT /api/v1/dns/policy", body).await;
        assert_eq!((late.status.as_u16(), late.code()), (409, "POLICY_CHANGED".to_owned()));
        let plan = s.f.admin("POST /api/v1/dns/policy/plan", json!({ "policy": policy })).await.json();
        assert_eq!(plan["is_empty"], true, "{plan}");
        let what_if = json!({ "name": "news.example", "policy": { "rules": ["||news.example^"] } });
        let tried = s.f.admin("POST /api/v1/dns/what-if", what_if).await;
        assert_eq!(tried.json()["outcome"], "blocked", "{}", tried.text);
        let why = s.f.admin("GET /api/v1/dns/why?name=news.example", Value::Null).await.json();
        assert_ne!(why["outcome"], "blocked", "it was only tried");
        s.stop().await;
    }

    async fn a_logged_query_names_its_tier_as_the_cache_does(t: TestStore) {
        let (one, two) = (Server::named(&t, "one").await, Server::named(&t, "two").await);
        one.ask("shop.example").await;
        one.wait_for("GET /api/v1/dns/cache/answers?name=shop.example&type=A", |found| found["items"].as_array().unwrap().len() == 2).await;
        one.ask("shop.example").await;
        two.ask("shop.example").await;
        // One of the rows comes from the other instance.
        let found = one.wait_for("GET /api/v1/dns/queries", |page| page["items"].as_array().unwrap().len() == 3).await;
        let mut tiers: Vec<&str> = found["items"].as_array().unwrap().iter().map(|item| item["tier"].as_str().unwrap_or("")).collect();
        tiers.sort_unstable();
        assert_eq!(tiers, ["", "memory", "store"], "{found}");
        let csv = one.f.admin("GET /api/v1/dns/queries/export", Value::Null).await.text;
        assert!(csv.contains(",cached,memory,") && csv.contains(",cached,store,") && csv.contains(",upstream,,"), "{csv}");
        one.stop().await;
        two.stop().await;
    }

    async fn a_tail_follows_the_queries_of_all_instances(t: TestStore) {
        let (one, two) = (Server::named(&t, "one").await, Server::named(&t, "two").await);
        // Each must know of the other.
        one.wait_for("GET /api/v1/dns/instances", |found| found["items"].as_array().unwrap().len() == 2).await;
        let mut tail = one.f.stream("/api/v1/dns/queries/tail?name=tailed").await;
        one.ask("own.tailed.example").await;
        two.ask("other.tailed.example").await;
        two.ask("something.example").await;
        let mut events = String::new();
        while !(events.contains("own.tailed.example") && events.contains("other.tailed.example")) {
            let piece = tokio::time::timeout(std::time::Duration::from_secs(60), tail.next()).await;
            events.push_str(&piece.unwrap_or_else(|_| panic!("no more: {events}")));
        }
        two.ask("last.tailed.example").await;
        while !events.contains("last.tailed.example") {
            let piece = tokio::time::timeout(std::time::Duration::from_secs(60), tail.next()).await;
            events.push_str(&piece.unwrap_or_else(|_| panic!("no more: {events}")));
        }
        assert_eq!(events.matches("event: query").count(), 3, "each once: {events}");
        assert!(events.contains(r#""instance":"two""#) && !events.contains("something.example"), "{events}");
        drop(tail);
        one.stop().await;
        two.stop().await;
    }

    async fn what_is_added_under_one_key_is_added_once(t: TestStore) {
        let s = Server::start(&t).await;
        s.f.admin("PUT /api/v1/dns/groups/kids", json!({ "name": "Kids" })).await;
        s.f.admin("PUT /api/v1/dns/lists/ads", json!({ "url": "embedded:default" })).await;
        let window = json!({ "schedule": "bedtime", "action": "block", "days": ["mon"], "start": "20:00", "end": "21:00" });
        let list_window = json!({ "days": ["mon"], "start": "20:00", "end": "21:00" });
        let calls = [
            ("POST /api/v1/dns/groups/kids/windows", window),
            ("POST /api/v1/dns/lists/ads/windows", list_window),
            ("POST /api/v1/dns/rules", json!({ "rule": "||ads.example^" })),
            ("POST /api/v1/dns/records", json!({ "name": "a.home.arpa", "type": "A", "value": "192.168.1.9" })),
            ("POST /api/v1/dns/upstreams", json!({ "address": "192.0.2.1" })),
            ("POST /api/v1/dns/pauses", json!({ "duration_seconds": 60 })),
            ("POST /api/v1/dns/timed-rules", json!({ "name": "a.example", "action": "block", "duration_seconds": 60 })),
            ("PUT /api/v1/dns/clients/tablet", json!({ "addresses": ["192.168.1.20"] })),
            ("PUT /api/v1/dns/services/mine", json!({ "name": "Mine", "domains": ["mine.example"] })),
        ];
        for (number, (call, body)) in calls.iter().enumerate() {
            let key = format!("key-{number}");
            let first = s.f.keyed(&key, call, body.clone()).await;
            assert_eq!(first.status, 200, "{call}: {}", first.text);
            let again = s.f.keyed(&key, call, body.clone()).await;
            assert_eq!((again.status.as_u16(), &again.text), (200, &first.text), "{call}");
            assert_eq!(again.headers["idempotent-replayed"], "true", "{call}");
            let mut other = body.clone();
            other["comment"] = json!("another");
            let refused = s.f.keyed(&key, call, other).await;
            assert_eq!(refused.status, 409, "{call}: {}", refused.text);
        }
        // A window that was added twice would stand there twice.
        let kids = s.f.admin("GET /api/v1/dns/groups/kids", Value::Null).await.json();
        assert_eq!(kids["schedules"][0]["schedule"]["windows"].as_array().map(Vec::len), Some(1), "{kids}");
        let ads = s.f.admin("GET /api/v1/dns/lists/ads", Value::Null).await.json();
        assert_eq!(ads["schedule"]["windows"].as_array().map(Vec::len), Some(1), "{ads}");
        s.stop().await;
    }

    async fn queries_are_logged_searched_counted_and_deleted(t: TestStore) {
        // A range ends before its last moment, and the clock of a test starts with an hour.
        t.clock.advance(std::time::Duration::from_secs(60));
        let s = Server::start(&t).await;
        s.f.admin("POST /api/v1/dns/rules", json!({ "rule": "||ads.example^" })).await;
        for name in ["shop.example", "ads.example", "news.example"] {
            s.ask(name).await;
        }
        let found = s.wait_for("GET /api/v1/dns/queries", |page| page["items"].as_array().unwrap().len() == 3).await;
        assert_eq!(found["items"][0]["name"], "news.example", "newest first: {found}");
        assert_eq!(found["items"][0]["tier"], Value::Null, "no tier had it: {found}");
        let blocked = s.f.admin("GET /api/v1/dns/queries?outcome=blocked", Value::Null).await.json();
        assert_eq!(blocked["items"][0]["name"], "ads.example");
        assert_eq!(blocked["items"].as_array().unwrap().len(), 1);
        let page = s.f.admin("GET /api/v1/dns/queries?limit=2", Value::Null).await.json();
        let next = format!("GET /api/v1/dns/queries?limit=2&cursor={}", page["next_cursor"].as_str().unwrap());
        let rest = s.f.admin(&next, Value::Null).await.json();
        assert_eq!((&rest["items"][0]["name"], &rest["next_cursor"]), (&json!("shop.example"), &Value::Null));
        let csv = s.f.admin("GET /api/v1/dns/queries/export", Value::Null).await;
        assert_eq!(csv.text.lines().count(), 4, "{}", csv.text);
        // An export and a search take the same conditions.
        for (conditions, count) in [
            ("name=shop&type=A&rcode=noerror&protocol=https&group=default", 1),
            ("answer=0.0.0.0&list=rules", 1),
            ("rcode=NXDOMAIN", 0),
            ("from=2000-01-01T00:00:00Z&to=", 3),
            ("to=2000-01-01T00:00:00Z", 0),
            ("max_duration_ms=60000&min_duration_ms=", 3),
        ] {
            let found = s.f.admin(&format!("GET /api/v1/dns/queries?{conditions}"), Value::Null).await.json();
            assert_eq!(found["items"].as_array().map(Vec::len), Some(count), "{conditions}: {found}");
            let csv = s.f.admin(&format!("GET /api/v1/dns/queries/export?{conditions}"), Value::Null).await;
            assert_eq!(csv.text.lines().count(), 1 + count, "{conditions}: {}", csv.text);
        }
        for wrong in ["rcode=NOSUCH", "from=yesterday", "protocol=quic"] {
            assert_eq!(s.f.admin(&format!("GET /api/v1/dns/queries/export?{wrong}"), Value::Null).await.status, 400, "{wrong}");
        }
        let statistics = s.wait_for("GET /api/v1/dns/statistics", |all| all["queries"] == 3).await;
        assert_eq!((&statistics["blocked"], &statistics["blocked_names"][0]["value"]), (&json!(1), &json!("ads.example")));
        let instances = s.f.admin("GET /api/v1/dns/instances", Value::Null).await.json();
        assert_eq!(instances["items"][0]["name"], "test", "{instances}");
        let gone = s.f.admin("DELETE /api/v1/dns/queries/clients/127.0.0.1", Value::Null).await;
        assert_eq!(gone.json()["deleted"], 3, "{}", gone.text);
        let left = s.f.admin("GET /api/v1/dns/queries", Value::Null).await.json();
        assert_eq!(left["items"], json!([]));
        let left = s.f.admin("GET /api/v1/dns/statistics", Value::Null).await.json();
        assert_eq!((&left["queries"], &left["clients"], &left["blocked_clients"]), (&json!(3), &json!([]), &json!([])), "{left}");
        let left = s.f.admin("GET /api/v1/dns/discovered-clients", Value::Null).await.json();
        assert_eq!(left["items"], json!([]));
        s.stop().await;
    }
}
