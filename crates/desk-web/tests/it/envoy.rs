//! Envoy's rate limit service over gRPC, on every store.

use serde_json::json;
use testkit::each_store;
use web::testing::{ADMIN, Fixture, framed};

use crate::protobuf::{self, Field, fields, number_of};
use crate::support::{fixture, wait_until, worker};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

async fn put_domain(f: &Fixture, name: &str, descriptors: serde_json::Value) {
    let body = json!({ "descriptors": descriptors, "when_store_down": "closed" });
    let got = f.admin(&format!("PUT /api/v1/ratelimit/domains/{name}"), body).await;
    assert!(got.status.is_success(), "{}", got.text);
}

fn entry(key: &str, value: &str) -> Vec<u8> {
    protobuf::bytes(1, [protobuf::bytes(1, key), protobuf::bytes(2, value)].concat())
}

/// A request for a domain; each descriptor is the bytes of its fields.
fn request(domain: &str, descriptors: &[Vec<u8>], hits: u64) -> Vec<u8> {
    let mut all = protobuf::bytes(1, domain);
    descriptors.iter().for_each(|one| all.extend(protobuf::bytes(2, one)));
    if hits > 0 {
        all.extend(protobuf::number(3, hits));
    }
    all
}

/// The overall code, then per descriptor: code, limit, unit, remaining.
async fn decide(f: &Fixture, message: &[u8]) -> (u64, Vec<[u64; 4]>) {
    let got = f.grpc(ADMIN, PATH, framed(message)).await;
    assert_eq!((got.status, got.message.as_str()), (0, ""));
    let all = fields(&got.body);
    let statuses = all.iter().filter(|(tag, _)| *tag == 2).map(|(_, status)| {
        let status = status.fields();
        let limit = status.iter().find(|(tag, _)| *tag == 2).map(|(_, limit)| limit.fields());
        let limit = limit.unwrap_or_default();
        [number_of(&status, 1), number_of(&limit, 1), number_of(&limit, 2), number_of(&status, 3)]
    });
    (number_of(&all, 1), statuses.collect())
}

each_store! {
    async fn each_descriptor_has_its_status_in_order(t: TestStore) {
        let f = fixture(&t.store);
        let limit = |count: u32, unit: &str| json!({ "requests_per_unit": count, "unit": unit });
        put_domain(&f, "web", json!([
            { "key": "ip", "limit": limit(2, "hour"), "name": "per address" },
            { "key": "path", "value": "/login", "descriptors": [{ "key": "ip", "limit": limit(9, "year") }] },
        ])).await;
        let asked = request("web", &[
            entry("ip", "192.0.2.7"),
            entry("other", "x"),
            [entry("path", "/login"), entry("ip", "192.0.2.7")].concat(),
        ], 0);
        assert_eq!(decide(&f, &asked).await, (OK, vec![[OK, 2, 3, 1], [OK, 0, 0, 0], [OK, 9, 6, 8]]));
        assert_eq!(decide(&f, &asked).await, (OK, vec![[OK, 2, 3, 0], [OK, 0, 0, 0], [OK, 9, 6, 7]]));
        let denied = (OVER_LIMIT, vec![[OVER_LIMIT, 2, 3, 0], [OK, 0, 0, 0], [OK, 9, 6, 7]]);
        assert_eq!(decide(&f, &asked).await, denied, "and nothing was charged to the others");
        let elsewhere = request("nobody", &[entry("ip", "192.0.2.7")], 0);
        assert_eq!(decide(&f, &elsewhere).await, (OK, vec![[OK, 0, 0, 0]]));
    }

    async fn a_reply_names_the_limit_its_end_and_headers_to_add(t: TestStore) {
        let f = fixture(&t.store);
        let limit = json!({ "requests_per_unit": 1, "unit": "minute" });
        put_domain(&f, "web", json!([{ "key": "ip", "limit": limit, "name": "per address" }])).await;
        let asked = framed(&request("web", &[entry("ip", "192.0.2.7")], 0));
        f.grpc(ADMIN, PATH, asked.clone()).await;
        let got = fields(&f.grpc(ADMIN, PATH, asked).await.body);
        let status = got.iter().find(|(tag, _)| *tag == 2).unwrap().1.fields();
        let limit = status.iter().find(|(tag, _)| *tag == 2).unwrap().1.fields();
        assert_eq!(limit[2], (3, Field::Bytes(b"per address".to_vec())));
        let left_ms = 60_000 - t.store.now().0.rem_euclid(60_000);
        let reset = status.iter().find(|(tag, _)| *tag == 4).unwrap().1.fields();
        assert_eq!(number_of(&reset, 1) as i64, left_ms / 1_000);
        let headers: Vec<(String, String)> = got.iter().filter(|(tag, _)| *tag == 3).map(|(_, header)| {
            let header = header.fields();
            (header[0].1.text(), header[1].1.text())
        }).collect();
        let seconds = (left_ms + 999) / 1_000;
        assert_eq!(headers, [
            ("ratelimit-policy".to_owned(), "\"per address\";q=1;w=60".to_owned()),
            ("ratelimit".to_owned(), format!("\"per address\";r=0;t={seconds}")),
            ("retry-after".to_owned(), seconds.to_string()),
        ]);
    }

    async fn hits_of_request_and_descriptor_count_and_negative_ones_are_a_refund(t: TestStore) {
        let f = fixture(&t.store);
        put_domain(&f, "web", json!([{ "key": "ip", "limit": { "requests_per_unit": 10, "unit": "day" } }])).await;
        let hits = |count: u64| protobuf::bytes(3, protobuf::number(1, count));
        let one = entry("ip", "192.0.2.7");
        let remaining = async |message: Vec<u8>| {
            let (code, statuses) = decide(&f, &message).await;
            (code, statuses[0][3])
        };
        assert_eq!(remaining(request("web", std::slice::from_ref(&one), 4)).await, (OK, 6), "of the request");
        let own = [one.clone(), hits(5)].concat();
        assert_eq!(remaining(request("web", &[own], 4)).await, (OK, 1), "of the descriptor");
        let look = [one.clone(), protobuf::bytes(3, [])].concat();
        assert_eq!(remaining(request("web", &[look], 4)).await, (OK, 1), "zero only looks");
        let back = [one.clone(), hits(3), protobuf::number(4, 1)].concat();
        assert_eq!(remaining(request("web", &[back], 1)).await, (OK, 4));
        assert_eq!(remaining(request("web", &[one.clone(), one.clone()], 2)).await, (OK, 0), "equal ones add up");
        assert_eq!(remaining(request("web", &[one], 0)).await, (OVER_LIMIT, 0));
    }

    async fn every_unit_can_come_with_a_descriptor(t: TestStore) {
        let f = fixture(&t.store);
        for unit in 1..=6_u64 {
            let own = protobuf::bytes(2, [protobuf::number(1, 1), protobuf::number(2, unit)].concat());
            let asked = request("own", &[[entry("unit", &unit.to_string()), own].concat()], 0);
            assert_eq!(decide(&f, &asked).await, (OK, vec![[OK, 1, unit, 0]]));
            assert_eq!(decide(&f, &asked).await.0, OVER_LIMIT, "unit {unit}");
        }
    }

    async fn exactly_the_limit_passes_over_two_instances(t: TestStore) {
        let (one, other) = (fixture(&t.store), fixture(&t.another().await));
        put_domain(&one, "web", json!([{ "key": "ip", "limit": { "requests_per_unit": 100, "unit": "day" } }])).await;
        // The other instance reads the rules within a second, when its background work runs; here they
        // come with the request.
        let own = protobuf::bytes(2, [protobuf::number(1, 100), protobuf::number(2, 4)].concat());
        let asked = framed(&request("web", &[[entry("ip", "192.0.2.7"), own].concat()], 0));
        let all = (0..400).map(|index| {
            let f = if index % 2 == 0 { &one } else { &other };
            f.grpc(ADMIN, PATH, asked.clone())
        });
        let answers = futures_util::future::join_all(all).await;
        let passed = answers.iter().filter(|got| number_of(&fields(&got.body), 1) == OK).count();
        assert_eq!(passed, 100);
    }

    async fn use_is_counted_by_the_name_of_the_domain(t: TestStore) {
        let a = crate::support::Instance::start(&t.store, "a");
        let shadow = json!({ "key": "ip", "shadow": true, "limit": { "requests_per_unit": 1, "unit": "day" } });
        put_domain(&a.web, "web", json!([shadow])).await;
        let asked = request("web", &[entry("ip", "192.0.2.7")], 0);
        for _ in 0..3 {
            assert_eq!(decide(&a.web, &asked).await.0, OK, "shadow passes all");
        }
        wait_until("use is written", async || {
            let stats = a.web.admin("GET /api/v1/ratelimit/stats", serde_json::Value::Null).await.json();
            let web = stats["items"].as_array().unwrap().iter().find(|one| one["policy"] == "web");
            web.is_some_and(|web| web["allowed"] == 3 && web["shadow"] == 2 && web["top"][0]["identity"] == "ip=192.0.2.7")
        }).await;
        a.stop().await;
    }

    async fn a_call_that_cannot_be_meant_gets_a_status_and_charges_nothing(t: TestStore) {
        let f = fixture(&t.store);
        let good = request("web", &[entry("ip", "192.0.2.7")], 0);
        let bad_unit = protobuf::bytes(2, [protobuf::number(1, 1), protobuf::number(2, 77)].concat());
        let many: Vec<_> = (0..101).map(|n| entry("ip", &n.to_string())).collect();
        let short = framed(&good)[..10].to_vec();
        let long = [framed(&good), vec![0]].concat();
        let cases = [
            (vec![], 3, "malformed gRPC frame"),
            (vec![0, 0, 0], 3, "malformed gRPC frame"),
            (short, 3, "malformed gRPC frame"),
            (long, 3, "malformed gRPC frame"),
            ([&[9], &framed(&good)[1..]].concat(), 3, "flag is 9"),
            ([&[1], &framed(&good)[1..]].concat(), 12, "use gzip or identity"),
            (framed(b"\xff\xff"), 3, "not a RateLimitRequest"),
            (framed(&request("", &[entry("a", "b")], 0)), 3, "domain is empty"),
            (framed(&request("web", &many, 0)), 3, "at most 100"),
            (framed(&request("web", &[bad_unit], 0)), 3, "unknown unit 77"),
            (framed(&request(&"x".repeat(2_000), &[entry("a", "b")], 0)), 3, "1,024 bytes"),
        ];
        for (body, status, told) in cases {
            let got = f.grpc(ADMIN, PATH, body.clone()).await;
            assert_eq!((got.status, got.body.len()), (status, 0), "{got:?} for {body:?}");
            assert!(got.message.contains(told), "{got:?} for {told}");
        }
        assert_eq!(f.grpc("", PATH, framed(&good)).await.status, 16);
        assert_eq!(f.grpc("tg_wrong", PATH, framed(&good)).await.status, 16);
        let other = worker(&f, &["traffic"]).await;
        assert_eq!(f.grpc(&other, PATH, framed(&good)).await.status, 7);
        let own = worker(&f, &["limits"]).await;
        assert_eq!(f.grpc(&own, PATH, framed(&good)).await.status, 0);
        assert_eq!(f.grpc(ADMIN, "/grpc.health.v1.Health/Check", framed(b"")).await.status, 12);
        let plain = f.post_bytes(PATH, &[("authorization", &format!("Bearer {ADMIN}"))], good).await;
        assert_eq!(plain.0, 415);
        let old = [("authorization", format!("Bearer {ADMIN}")), ("content-type", "application/grpc".to_owned())];
        let old: Vec<_> = old.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(f.post_bytes(PATH, &old, vec![]).await.0, 200, "HTTP/1.1 is told in gRPC's words");
    }

    async fn domains_are_listed_replaced_and_removed(t: TestStore) {
        let f = fixture(&t.store);
        let rules = json!([{ "key": "a", "value": "b*", "limit": { "requests_per_unit": 5, "unit": "week" },
            "name": "n", "descriptors": [{ "key": "c", "unlimited": true }] }]);
        put_domain(&f, "my%20shop", rules.clone()).await;
        let got = f.admin("GET /api/v1/ratelimit/domains/my%20shop", serde_json::Value::Null).await.json();
        assert_eq!((&got["domain"], &got["descriptors"], &got["when_store_down"]), (&json!("my shop"), &rules, &json!("closed")));
        let list = f.admin("GET /api/v1/ratelimit/domains", serde_json::Value::Null).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
        for bad in [
            json!({}),
            json!({ "descriptors": [{ "key": "" }] }),
            json!({ "descriptors": [{ "key": "a", "limit": { "requests_per_unit": 1, "unit": "fortnight" } }] }),
            json!({ "descriptors": [{ "key": "a", "limit": { "requests_per_unit": 1, "unit": "day" }, "unlimited": true }] }),
            json!({ "descriptors": [{ "key": "a" }, { "key": "a" }] }),
            json!({ "descriptors": [{ "key": "a", "replaces": ["nobody"] }] }),
            json!({ "descriptors": [], "when_store_down": "maybe" }),
            json!({ "descriptors": [], "colour": "red" }),
        ] {
            let got = f.admin("PUT /api/v1/ratelimit/domains/my%20shop", bad.clone()).await;
            assert_eq!(got.status, 400, "{bad}: {}", got.text);
        }
        assert_eq!(f.admin("DELETE /api/v1/ratelimit/domains/my%20shop", serde_json::Value::Null).await.status, 200);
        assert_eq!(f.admin("GET /api/v1/ratelimit/domains/my%20shop", serde_json::Value::Null).await.status, 404);
        assert_eq!(f.admin("DELETE /api/v1/ratelimit/domains/my%20shop", serde_json::Value::Null).await.code(), "DOMAIN_NOT_FOUND");
    }
}
