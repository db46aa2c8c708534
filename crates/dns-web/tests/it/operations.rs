//! What operators do besides rules: lists and their previews, services, patches, set-up, requests, import and
//! export, tests of upstreams, sweeps.

use serde_json::{Value, json};

use crate::support::{Server, rcode_of};

/// The address in a reply.
fn address(reply: &[u8]) -> [u8; 4] {
    reply[reply.len() - 4..].try_into().unwrap()
}

const TRUE: [u8; 4] = [192, 0, 2, 7];
const NULL: [u8; 4] = [0, 0, 0, 0];

testkit::each_store! {
    async fn a_list_is_previewed_against_the_queries_of_the_last_day(t: TestStore) {
        let s = Server::start(&t).await;
        for name in ["doubleclick.net", "shop.example", "doubleclick.net"] {
            s.ask(name).await;
        }
        s.wait_for("GET /api/v1/dns/queries", |found| found["items"].as_array().unwrap().len() == 3).await;
        let body = json!({ "url": "embedded:default" });
        let found = s.f.admin("POST /api/v1/dns/lists/new/preview", body).await;
        assert_eq!(found.status, 200, "{}", found.text);
        let states = s.f.admin("GET /api/v1/dns/list-states", Value::Null).await.json();
        let in_use: Vec<Value> = states["items"].as_array().unwrap().clone();
        // With the starting list nothing changes; without it two queries would pass.
        if in_use.iter().any(|list| list["id"] == "default") {
            assert_eq!(in_use[0]["unique_names"], in_use[0]["rules"], "{states}");
            let off = s.f.admin("POST /api/v1/dns/lists/default/preview", json!({ "enabled": false })).await.json();
            assert_eq!((&off["queries"], &off["no_longer_blocked"]), (&json!(3), &json!(2)), "{off}");
            assert_eq!((&off["names"][0]["name"], &off["names"][0]["list"]), (&json!("doubleclick.net"), &json!("default")));
        } else {
            let found = found.json();
            assert_eq!((&found["queries"], &found["newly_blocked"]), (&json!(3), &json!(2)), "{found}");
        }
        let policy = json!({ "policy": { "rules": ["||shop.example^"] } });
        let planned = s.f.admin("POST /api/v1/dns/policy/preview", policy).await.json();
        assert!(planned["names"].as_array().unwrap().iter().any(|one| one["name"] == "shop.example"), "{planned}");
        assert_eq!(address(&s.ask("shop.example").await), TRUE, "nothing was saved");
        let missing = s.f.admin("POST /api/v1/dns/lists/none/preview", json!({})).await;
        assert_eq!(missing.status, 404, "{}", missing.text);
        s.stop().await;
    }

    async fn every_word_may_be_the_id_of_a_list_and_of_a_client(t: TestStore) {
        let s = Server::start(&t).await;
        for id in ["state", "states", "refresh", "suggestions", "discovered", "preview"] {
            for (kind, body) in [("lists", json!({ "url": "embedded:default" })), ("clients", json!({ "addresses": [] }))] {
                let made = s.f.admin(&format!("PUT /api/v1/dns/{kind}/{id}"), body).await;
                assert_eq!(made.status, 200, "{kind} {id}: {}", made.text);
                let found = s.f.admin(&format!("GET /api/v1/dns/{kind}/{id}"), Value::Null).await;
                assert_eq!(found.json()["id"], id, "{kind}: {}", found.text);
                let gone = s.f.admin(&format!("DELETE /api/v1/dns/{kind}/{id}"), Value::Null).await;
                assert_eq!(gone.status, 200, "{kind} {id}: {}", gone.text);
            }
        }
        s.stop().await;
    }

    async fn a_suggested_list_tells_a_bound_before_it_is_fetched_and_its_size_after(t: TestStore) {
        let s = Server::start(&t).await;
        let removed = s.f.admin("DELETE /api/v1/dns/lists/default", Value::Null).await;
        assert!([200, 404].contains(&removed.status.as_u16()), "{}", removed.text);
        let suggested = async || {
            let found = s.f.admin("GET /api/v1/dns/list-suggestions", Value::Null).await.json();
            let all = found["items"].as_array().unwrap().clone();
            all.into_iter().find(|one| one["id"] == "default").unwrap()
        };
        let before = suggested().await;
        assert_eq!((&before["names"], &before["memory_bytes"]), (&Value::Null, &Value::Null), "{before}");
        let made = s.f.admin("PUT /api/v1/dns/lists/default", json!({ "url": "embedded:default" })).await;
        assert_eq!(made.status, 200, "{}", made.text);
        let after = suggested().await;
        let names = after["names"].as_u64().unwrap();
        assert!(names > 1_000 && names < after["names_below"].as_u64().unwrap(), "{after}");
        assert_eq!(after["in_use"], true);
        s.stop().await;
    }

    async fn pages_of_what_is_not_there_are_not_found(t: TestStore) {
        let s = Server::start(&t).await;
        let made = s.f.admin("PUT /api/v1/dns/clients/tablet", json!({ "addresses": ["192.168.7.7"] })).await;
        assert_eq!(made.status, 200, "{}", made.text);
        for (path, status) in [
            ("/dns/clients/tablet", 200),
            ("/dns/clients/192.168.7.99", 200),
            ("/dns/clients/nope", 404),
            ("/dns/groups/default", 200),
            ("/dns/groups/nope", 404),
            ("/dns/queries/nowhere/1", 404),
            ("/dns/queries/test/999999", 404),
            ("/dns/nope", 404),
        ] {
            let page = s.f.admin(&format!("GET {path}"), Value::Null).await;
            assert_eq!(page.status, status, "{path}");
        }
        s.stop().await;
    }

    async fn services_are_blocked_with_a_click_and_at_some_times(t: TestStore) {
        let s = Server::start(&t).await;
        let all = s.f.admin("GET /api/v1/dns/services?limit=1000", Value::Null).await.json();
        assert!(all["items"].as_array().unwrap().len() >= 17, "{all}");
        let own = s.f.admin("PUT /api/v1/dns/services/games", json!({ "name": "Games", "domains": ["games.example"] })).await;
        assert_eq!(own.status, 200, "{}", own.text);
        let taken = s.f.admin("PUT /api/v1/dns/services/tiktok", json!({ "domains": ["x.example"] })).await;
        assert_eq!(taken.code(), "BUILT_IN_SERVICE");
        for id in ["tiktok", "games"] {
            let made = s.f.admin(&format!("PUT /api/v1/dns/groups/default/services/{id}"), json!({})).await;
            assert_eq!((made.status.as_u16(), &made.json()["blocked_groups"]), (200, &json!(["default"])), "{}", made.text);
        }
        assert_eq!(address(&s.ask("www.games.example").await), NULL);
        assert_eq!(address(&s.ask("www.tiktok.com").await), NULL);
        let gone = s.f.admin("DELETE /api/v1/dns/groups/default/services/games", Value::Null).await;
        assert_eq!(gone.status, 200, "{}", gone.text);
        assert_eq!(address(&s.ask("www.games.example").await), TRUE);
        // Never on now, so allowed now.
        let window = json!({ "service": "games", "days": ["mon"], "start": "00:00", "end": "00:01", "time_zone": "Europe/Berlin" });
        let timed = s.f.admin("POST /api/v1/dns/groups/default/service-windows", window).await;
        assert_eq!(timed.status, 200, "{}", timed.text);
        let none = json!({ "service": "games", "days": [], "start": "00:00", "end": "00:01" });
        let refused = s.f.admin("POST /api/v1/dns/groups/default/service-windows", none).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        s.stop().await;
    }

    async fn single_fields_are_patched_and_schedules_grow_by_windows(t: TestStore) {
        let s = Server::start(&t).await;
        let group = s.f.admin("PUT /api/v1/dns/groups/kids", json!({ "name": "Kids", "rules": ["||video.example^"] })).await;
        assert_eq!(group.status, 200, "{}", group.text);
        let patched = s.f.admin("PATCH /api/v1/dns/groups/kids", json!({ "safe_search": ["google"], "block_reply": { "mode": "nxdomain" } })).await;
        assert_eq!(patched.status, 200, "{}", patched.text);
        let kids = s.f.admin("GET /api/v1/dns/groups/kids", Value::Null).await.json();
        assert_eq!((&kids["rules"], &kids["safe_search"], &kids["name"]), (&json!(["||video.example^"]), &json!(["google"]), &json!("Kids")));
        s.f.admin("PUT /api/v1/dns/clients/tablet", json!({ "addresses": ["127.0.0.1"] })).await;
        let moved = s.f.admin("PATCH /api/v1/dns/clients/tablet", json!({ "group": "kids" })).await;
        assert_eq!(moved.status, 200, "{}", moved.text);
        assert_eq!(rcode_of(&s.ask("video.example").await), 3, "NXDOMAIN, as its group says");
        for (days, start) in [(json!(["mon"]), "20:00"), (json!(["tue", "wed"]), "21:00")] {
            let window = json!({ "schedule": "bedtime", "action": "block", "days": days, "start": start, "end": "06:00" });
            let added = s.f.admin("POST /api/v1/dns/groups/kids/windows", window).await;
            assert_eq!(added.status, 200, "{}", added.text);
        }
        let kids = s.f.admin("GET /api/v1/dns/groups/kids", Value::Null).await.json();
        assert_eq!(kids["schedules"][0]["schedule"]["windows"].as_array().unwrap().len(), 2, "{kids}");
        let gone = s.f.admin("DELETE /api/v1/dns/groups/kids/schedules/bedtime", Value::Null).await;
        assert_eq!(gone.status, 200, "{}", gone.text);
        assert_eq!(s.f.admin("DELETE /api/v1/dns/groups/kids/schedules/bedtime", Value::Null).await.status, 404);
        let policy = s.f.admin("PATCH /api/v1/dns/policy", json!({ "log": { "sample_one_in": 5 } })).await;
        assert_eq!((policy.status.as_u16(), &policy.json()["policy"]["log"]["sample_one_in"]), (200, &json!(5)), "{}", policy.text);
        for (what, body) in [
            ("PATCH /api/v1/dns/policy", json!({ "nonsense": 1 })),
            ("PATCH /api/v1/dns/groups/kids", json!({ "cache": "maybe" })),
            ("PATCH /api/v1/dns/clients/tablet", json!({ "group": "none" })),
        ] {
            let refused = s.f.admin(what, body).await;
            assert_eq!(refused.status, 400, "{what}: {}", refused.text);
        }
        assert_eq!(s.f.admin("PATCH /api/v1/dns/groups/none", json!({})).await.status, 404);
        s.stop().await;
    }

    async fn the_first_decisions_are_one_call(t: TestStore) {
        let s = Server::start(&t).await;
        let refused = s.f.admin("POST /api/v1/dns/setup", json!({ "lists": "none", "upstream": "own", "access": "private" })).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        let body = json!({ "lists": "built_in", "upstream": "settings", "access": "machine" });
        let made = s.f.admin("POST /api/v1/dns/setup", body).await;
        assert_eq!(made.status, 200, "{}", made.text);
        let policy = made.json()["policy"].clone();
        assert_eq!(policy["lists"].as_array().unwrap().len(), 1, "{policy}");
        assert_eq!(policy["access"]["networks"], json!(["127.0.0.0/8", "::1/128"]));
        assert_eq!(address(&s.ask("doubleclick.net").await), NULL);
        s.stop().await;
    }

    async fn settings_of_other_resolvers_are_imported_and_exported(t: TestStore) {
        let s = Server::start(&t).await;
        let text = "user_rules:\n  - '||ads.example^'\n  - 'example.com##.banner'\nfiltering:\n  rewrites:\n    - { domain: nas.lan, answer: 192.168.1.3 }\n";
        let body = json!({ "file_name": "AdGuardHome.yaml", "text": text, "dry_run": true });
        let dry = s.f.admin("POST /api/v1/dns/policy/import", body.clone()).await;
        assert_eq!(dry.status, 200, "{}", dry.text);
        let dry = dry.json();
        assert_eq!((&dry["format"], &dry["is_applied"]), (&json!("adguard_home"), &json!(false)), "{dry}");
        assert_eq!((&dry["skipped"][0]["line"], &dry["imported"]["rules"]), (&json!(3), &json!(1)), "{dry}");
        assert_eq!(address(&s.ask("ads.example").await), TRUE, "nothing changed yet");
        let mut body = body;
        body["dry_run"] = json!(false);
        let done = s.f.admin("POST /api/v1/dns/policy/import", body).await;
        assert_eq!(done.status, 200, "{}", done.text);
        assert_eq!(address(&s.ask("ads.example").await), NULL);
        assert_eq!(address(&s.ask("nas.lan").await), [192, 168, 1, 3]);
        let whole = s.f.admin("GET /api/v1/dns/policy/export", Value::Null).await.json();
        assert_eq!(whole["records"].as_array().unwrap().len(), 1, "{whole}");
        let portable = s.f.admin("GET /api/v1/dns/policy/export?extent=portable", Value::Null).await.json();
        assert_eq!((portable["records"].as_array().unwrap().len(), &portable["rules"]), (0, &json!(["||ads.example^"])), "{portable}");
        for (body, field) in [
            (json!({ "text": "a: [" }), "text"),
            (json!({}), "text"),
            (json!({ "base64": "***" }), "base64"),
        ] {
            let refused = s.f.admin("POST /api/v1/dns/policy/import", body).await;
            assert_eq!((refused.status.as_u16(), refused.json()["error"]["details"]["field"].as_str()), (400, Some(field)), "{}", refused.text);
        }
        s.stop().await;
    }

    async fn upstreams_are_tested_added_and_removed(t: TestStore) {
        let s = Server::start(&t).await;
        let listed = s.f.admin("GET /api/v1/dns/upstreams", Value::Null).await.json();
        let server = listed["items"][0]["server"].as_str().unwrap().to_owned();
        let tested = s.f.admin("POST /api/v1/dns/upstreams/test", json!({ "server": server, "name": "shop.example" })).await.json();
        assert_eq!((&tested["is_ok"], &tested["answer"]), (&json!(true), &json!("192.0.2.7")), "{tested}");
        let bad = s.f.admin("POST /api/v1/dns/upstreams/test", json!({ "server": "ftp://x" })).await;
        assert_eq!(bad.status, 400, "{}", bad.text);
        let made = s.f.admin("POST /api/v1/dns/upstreams", json!({ "address": server })).await;
        assert_eq!(made.status, 200, "{}", made.text);
        assert_eq!(address(&s.ask("new.example").await), TRUE);
        let gone = s.f.admin(&format!("DELETE /api/v1/dns/upstreams?server={server}"), Value::Null).await;
        assert_eq!(gone.status, 200, "{}", gone.text);
        let gone = s.f.admin(&format!("DELETE /api/v1/dns/upstreams?server={server}"), Value::Null).await;
        assert_eq!(gone.status, 404, "{}", gone.text);
        s.stop().await;
    }

    async fn upstreams_of_domains_and_groups_are_added_and_removed(t: TestStore) {
        let s = Server::start(&t).await;
        let listed = s.f.admin("GET /api/v1/dns/upstreams", Value::Null).await.json();
        let server = listed["items"][0]["server"].as_str().unwrap().to_owned();
        let post = async |body: Value| s.f.admin("POST /api/v1/dns/upstreams", body).await;
        let policy = async || s.f.admin("GET /api/v1/dns/policy", Value::Null).await.json();
        // A server that answers nothing for one domain; all others go where they went.
        for _ in 0..2 {
            let made = post(json!({ "address": "127.0.0.1:9", "domains": ["dead.example"] })).await;
            assert_eq!(made.status, 200, "{}", made.text);
        }
        let domains = policy().await["policy"]["upstreams"]["domains"].clone();
        assert_eq!(domains.as_array().unwrap().len(), 1, "once: {domains}");
        assert_eq!(address(&s.ask("alive.example").await), TRUE);
        let reply = s.ask("www.dead.example").await;
        assert_eq!(crate::support::rcode_of(&reply), 2, "SERVFAIL");
        let made = post(json!({ "address": server, "group": "default" })).await;
        assert_eq!(made.status, 200, "{}", made.text);
        assert_eq!(post(json!({ "address": server, "group": "nobody" })).await.status, 404);
        assert_eq!(post(json!({ "address": server, "group": "default", "domains": ["a.example"] })).await.status, 400);
        for (place, status) in [("domain=other.example", 404), ("domain=dead.example", 200), ("domain=dead.example", 404)] {
            let gone = s.f.admin(&format!("DELETE /api/v1/dns/upstreams?server=127.0.0.1:9&{place}"), Value::Null).await;
            assert_eq!(gone.status, status, "{place}: {}", gone.text);
        }
        let gone = s.f.admin(&format!("DELETE /api/v1/dns/upstreams?server={server}&group=default"), Value::Null).await;
        assert_eq!(gone.status, 200, "{}", gone.text);
        assert_eq!(policy().await["policy"]["upstreams"]["domains"], json!([]));
        s.stop().await;
    }

    async fn answers_are_refreshed_swept_and_capped_on_demand(t: TestStore) {
        let s = Server::start(&t).await;
        s.ask("kept.example").await;
        s.wait_for("GET /api/v1/dns/cache/answers?name=kept.example&type=A", |found| {
            found["items"].as_array().unwrap().len() == 2
        }).await;
        let refreshed = s.f.admin("POST /api/v1/dns/cache/answers/kept.example/refresh", json!({})).await;
        assert_eq!((refreshed.status.as_u16(), &refreshed.json()["refreshed"]), (200, &json!(1)), "{}", refreshed.text);
        assert_eq!(s.f.admin("POST /api/v1/dns/cache/answers/other.example/refresh", json!({})).await.status, 404);
        let swept = s.f.admin("POST /api/v1/dns/cache/sweep", json!({})).await;
        assert_eq!(swept.status, 200, "{}", swept.text);
        let sweeps = s.f.admin("GET /api/v1/dns/cache/sweeps", Value::Null).await.json();
        assert!(sweeps["day_sweeps"].as_u64().unwrap() >= 1, "{sweeps}");
        let cap = s.f.admin("PUT /api/v1/dns/cache/cap", json!({ "max_answers": 7 })).await.json();
        assert_eq!(cap["store_max_answers"], 7, "{cap}");
        s.stop().await;
    }

    async fn clients_are_discovered_and_problems_say_what_to_do(t: TestStore) {
        let s = Server::start(&t).await;
        s.ask("shop.example").await;
        let seen = s.wait_for("GET /api/v1/dns/discovered-clients", |found| {
            found["items"].as_array().unwrap().len() == 1
        }).await;
        assert_eq!(seen["items"][0]["client"], "127.0.0.1");
        s.f.admin("PUT /api/v1/dns/clients/here", json!({ "addresses": ["127.0.0.0/8"] })).await;
        s.wait_for("GET /api/v1/dns/discovered-clients", |found| found["items"] == json!([])).await;
        // A file that is not there: a list that fails, with the remedy.
        let made = s.f.admin("PUT /api/v1/dns/lists/gone", json!({ "url": "file:gone.txt" })).await;
        assert_eq!(made.status, 200, "{}", made.text);
        let failed = s.f.admin("POST /api/v1/dns/lists/gone/refresh", json!({})).await;
        assert_eq!(failed.status, 400, "{}", failed.text);
        let found = s.wait_for("GET /api/v1/dns/problems", |found| {
            found["items"].as_array().unwrap().iter().any(|one| one["id"] == "list:gone")
        }).await;
        let problem = found["items"].as_array().unwrap().iter().find(|one| one["id"] == "list:gone").unwrap();
        assert_eq!(problem["ended_at"], Value::Null, "{problem}");
        assert!(!problem["fix"].as_str().unwrap().is_empty(), "{problem}");
        s.f.admin("DELETE /api/v1/dns/lists/gone", Value::Null).await;
        s.wait_for("GET /api/v1/dns/problems", |found| {
            found["items"].as_array().unwrap().iter().any(|one| one["id"] == "list:gone" && !one["ended_at"].is_null())
        }).await;
        let stats = s.f.admin("GET /api/v1/dns/queries/stats", Value::Null).await.json();
        assert!(stats["recorded"].as_u64().unwrap() >= 1, "{stats}");
        let endpoints = s.f.admin("GET /api/v1/dns/endpoints?client=tablet", Value::Null).await.json();
        assert!(endpoints["missing"].as_str().unwrap().contains("dns.tls_name"), "{endpoints}");
        let profile = s.f.admin("GET /api/v1/dns/profile?client=tablet", Value::Null).await;
        assert_eq!((profile.status.as_u16(), profile.code()), (409, "NO_ENDPOINT".to_owned()));
        let summary = s.f.admin("POST /api/v1/dns/summary", json!({})).await;
        assert!(summary.json()["text"].as_str().unwrap().starts_with("In the last 24 hours"), "{}", summary.text);
        s.stop().await;
    }

    async fn every_page_is_there_for_those_who_act_and_those_who_look(t: TestStore) {
        let s = Server::start(&t).await;
        s.ask("shop.example").await;
        s.f.admin("PUT /api/v1/dns/groups/kids", json!({ "schedules": [{ "name": "bedtime", "action": "block",
            "schedule": { "windows": [{ "days": ["mon"], "start": "20:00", "end": "06:00" }] } }] })).await;
        s.f.admin("PUT /api/v1/dns/clients/tablet", json!({ "addresses": ["127.0.0.1"], "group": "kids" })).await;
        let rows = s.wait_for("GET /api/v1/dns/queries", |found| !found["items"].as_array().unwrap().is_empty()).await;
        let row = &rows["items"][0];
        let query = format!("queries/{}/{}", row["instance"].as_str().unwrap(), row["number"]);
        let viewer = s.f.token(web::auth::Role::Viewer).await;
        for path in ["", "queries", "clients", "clients/tablet", "clients/192.0.2.200", "groups", "groups/kids", "groups/none",
            "lists", "rules?name=shop.example", "services?group=kids", "records", "upstreams", "cache?name=shop.example",
            "instances", "problems", "settings", &query, "queries/none/9"] {
            for token in [&viewer, &s.f.token(web::auth::Role::Admin).await] {
                let page = s.f.call(token, format!("GET /dns/{path}").trim_end_matches('/'), Value::Null).await;
                let status = if path.contains("none") { 404 } else { 200 };
                assert_eq!(page.status, status, "{path}: {}", page.text);
                assert!(page.text.contains("</html>"), "{path}");
            }
        }
        s.stop().await;
    }
}
