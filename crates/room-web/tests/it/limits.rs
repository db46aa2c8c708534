//! How often visitors may call, whose pages may call for them, and what cannot be made up.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use room_web::RoomService;
use serde_json::{Value, json};
use testkit::TestStore;
use web::Settings;
use web::client::Peer;

use crate::api::{enqueue, fixture, queue};
use web::testing::{Answer, Fixture};

const ENQUEUE: &str = "/api/v1/queues/concert/enqueue";

async fn limited(t: &TestStore, most: u32) -> Fixture {
    let room = room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
    let services = vec![RoomService::on(room, most)];
    let settings =
        Settings { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], ..Settings::default() };
    let f = Fixture::running(t, settings, services);
    queue(&f).await;
    f
}

async fn from(f: &Fixture, peer: &str, what: &str, headers: &[(&str, &str)]) -> Answer {
    let (method, path) = what.split_once(' ').unwrap();
    let peer = Peer { addr: SocketAddr::new(peer.parse().unwrap(), 1), tls: false };
    let mut request = Request::builder().method(method).uri(path).extension(peer);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    f.send(request.body(Body::empty()).unwrap()).await
}

testkit::each_store! {
    async fn joining_too_often_from_one_network_is_refused_with_headers(t: TestStore) {
        let f = limited(&t, 3).await;
        let enqueue = format!("POST {ENQUEUE}");
        for left in ["2", "1", "0"] {
            let answer = from(&f, "203.0.113.9", &enqueue, &[]).await;
            assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (StatusCode::CREATED, left));
            assert_eq!(answer.header("x-ratelimit-limit"), "3");
        }
        let refused = from(&f, "203.0.113.9", &enqueue, &[]).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED"));
        let after: u64 = refused.header("retry-after").parse().unwrap();
        assert!((1..=61).contains(&after), "{after}");
        assert!(refused.header("x-ratelimit-reset").parse::<i64>().unwrap() > t.store.now().as_secs());
        // A page says it in words and tries again by itself.
        let arrived = from(&f, "203.0.113.9", "GET /_wr/concert", &[]).await;
        let cookie = arrived.header("set-cookie").split(';').next().unwrap().to_owned();
        let busy = from(&f, "203.0.113.9", "GET /_wr/concert/wait?probe=1", &[("cookie", &cookie)]).await;
        assert_eq!(busy.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(busy.text.contains("data-view=\"busy\"") && !busy.header("retry-after").is_empty());
        // Others are not touched; one subscriber's IPv6 addresses are one network.
        assert_eq!(from(&f, "203.0.113.10", &enqueue, &[]).await.status, StatusCode::CREATED);
        for n in 1..=3 {
            let address = format!("2001:db8:1:2::{n}");
            assert_eq!(from(&f, &address, &enqueue, &[]).await.status, StatusCode::CREATED);
        }
        assert_eq!(from(&f, "2001:db8:1:2:ffff::1", &enqueue, &[]).await.status, StatusCode::TOO_MANY_REQUESTS);
        t.clock.advance(std::time::Duration::from_secs(61));
        assert_eq!(from(&f, "203.0.113.9", &enqueue, &[]).await.status, StatusCode::CREATED);
    }

    async fn forwarding_headers_of_strangers_change_nothing(t: TestStore) {
        let f = limited(&t, 2).await;
        let enqueue = format!("POST {ENQUEUE}");
        let mut refused = 0;
        for n in 0..6 {
            let made_up = format!("198.51.100.{n}");
            let forwarded = format!("for={made_up};proto=https;host=evil.example");
            let headers = [("x-forwarded-for", made_up.as_str()), ("forwarded", &forwarded), ("x-real-ip", &made_up),
                ("x-forwarded-host", "evil.example"), ("x-forwarded-proto", "https")];
            let answer = from(&f, "203.0.113.9", &enqueue, &headers).await;
            refused += u32::from(answer.status == StatusCode::TOO_MANY_REQUESTS);
            assert!(!answer.header("set-cookie").contains("Secure"), "nor is the connection encrypted");
        }
        assert_eq!(refused, 4, "the limit counts the peer");
        // A trusted proxy's word counts, as far as it saw for itself.
        for n in 0..3 {
            let chain = format!("6.6.6.{n}, 203.0.113.50");
            let answer = from(&f, "10.0.0.1", &enqueue, &[("x-forwarded-for", &chain), ("x-forwarded-proto", "https")]).await;
            assert_eq!(answer.status == StatusCode::CREATED, n < 2, "counted as 203.0.113.50");
            assert_eq!(answer.header("set-cookie").contains("Secure"), n < 2);
        }
    }

    async fn nothing_a_visitor_sends_through_a_trusted_proxy_changes_whom_a_limit_counts(t: TestStore) {
        let f = limited(&t, 2).await;
        let enqueue = format!("POST {ENQUEUE}");
        let mut made = 0;
        for n in 0..8 {
            let made_up = format!("198.51.100.{n}");
            let forwarded = format!("for={made_up};proto=https;host=evil.example");
            let chain = format!("{made_up}, 203.0.113.60");
            // As nginx and Caddy hand them on: their own header, and everything else as it came.
            let headers = [("x-forwarded-for", chain.as_str()), ("forwarded", &forwarded), ("x-real-ip", &made_up),
                ("cf-connecting-ip", &made_up), ("true-client-ip", &made_up), ("x-client-ip", &made_up),
                ("x-request-id", "constant")];
            made += u32::from(from(&f, "10.0.0.1", &enqueue, &headers).await.status == StatusCode::CREATED);
        }
        assert_eq!(made, 2, "one visitor");
    }

    async fn polling_as_told_is_never_refused_and_hammering_is(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        enqueue(&f).await;
        let (_, token) = enqueue(&f).await;
        let (_, other) = enqueue(&f).await;
        let mut codes = Vec::new();
        for _ in 0..40 {
            codes.push(f.call(&token, "POST /api/v1/queues/concert/heartbeat", Value::Null).await.status);
        }
        assert!(codes[..30].iter().all(|code| *code == StatusCode::OK), "{codes:?}");
        let last = f.call(&token, "GET /api/v1/queues/concert/status", Value::Null).await;
        assert!(codes.contains(&StatusCode::TOO_MANY_REQUESTS) && last.header("x-ratelimit-limit") == "60");
        let fine = f.call(&other, "POST /api/v1/queues/concert/heartbeat", Value::Null).await;
        assert_eq!((fine.status, fine.header("x-ratelimit-limit")), (StatusCode::OK, "60"), "a position of its own");
    }

    async fn loading_the_page_over_and_over_is_bounded_and_costs_nothing(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        enqueue(&f).await;
        let (position, token) = enqueue(&f).await;
        let cookie = format!("wr_concert={token}");
        let load = async || from(&f, "203.0.113.9", "GET /_wr/concert/wait", &[("cookie", &cookie)]).await;
        for _ in 0..30 {
            assert_eq!(load().await.status, StatusCode::OK, "somebody who presses reload is served");
        }
        let mut refused = None;
        for _ in 0..20 {
            refused = Some(load().await).filter(|page| page.status == StatusCode::TOO_MANY_REQUESTS).or(refused);
        }
        let refused = refused.expect("a program that does nothing else is not");
        assert!(refused.text.contains("data-view=\"busy\"") && !refused.header("retry-after").is_empty());
        let fine = f.call(&token, "POST /api/v1/queues/concert/heartbeat", Value::Null).await;
        assert_eq!(fine.status, StatusCode::OK, "the page's own calls count apart");
        assert_eq!(fine.json()["position"], position["position"]);
    }

    async fn a_priority_needs_proof(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        enqueue(&f).await;
        let enqueue = format!("POST {ENQUEUE}");
        for body in [json!({ "priority": 1 }), json!({ "priority": 3, "metadata": { "vip": true } })] {
            let answer = f.call("", &enqueue, body).await;
            assert_eq!((answer.status, answer.code().as_str()), (StatusCode::FORBIDDEN, "PRIORITY_NOT_ALLOWED"));
        }
        assert!(f.call("", &enqueue, json!({ "priority": -1 })).await.status.is_client_error());
        let wrong = f.call("", &enqueue, json!({ "priority": 0, "lane": 3 })).await;
        assert_eq!((wrong.status, &wrong.json()["error"]["details"]["field"]), (StatusCode::BAD_REQUEST, &json!("lane")));
        let plain = f.call("", &enqueue, json!({ "priority": 0 })).await;
        assert_eq!((plain.status, &plain.json()["priority"]), (StatusCode::CREATED, &json!(0)));
        // Somebody else's proof, and one that was changed.
        f.admin("POST /api/v1/admin/queues", json!({ "id": "other" })).await;
        let invite = f.admin("POST /api/v1/admin/queues/other/invites", json!({ "priority": 3 })).await.json();
        let invite = invite["invite"].as_str().unwrap().to_owned();
        let answer = f.call("", &enqueue, json!({ "invite": invite, "priority": 3 })).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{}", answer.text);
        let mine = f.admin("POST /api/v1/admin/queues/concert/invites", json!({ "priority": 1 })).await.json();
        let (head, tag) = mine["invite"].as_str().unwrap().rsplit_once('.').unwrap();
        let other = if head.ends_with('A') { 'Q' } else { 'A' };
        let forged = format!("{}{other}.{tag}", &head[..head.len() - 1]);
        assert_eq!(f.call("", &enqueue, json!({ "invite": forged })).await.status, StatusCode::UNAUTHORIZED);
        let queue = f.admin("GET /api/v1/admin/queues/concert", Value::Null).await.json();
        assert_eq!(queue["waiting"], 1, "nobody else got in line");
    }

    async fn only_listed_origins_pages_may_call(t: TestStore) {
        let (f, _) = fixture(&t).await;
        queue(&f).await;
        f.admin("PATCH /api/v1/admin/queues/concert", json!({ "allowed_origins": ["https://app.example"] })).await;
        let asked = |origin: &'static str| [("origin", origin), ("access-control-request-method", "POST"), ("access-control-request-headers", "content-type")];
        for origin in ["https://app.example", "https://shop.example"] {
            let answer = from(&f, "203.0.113.9", &format!("OPTIONS {ENQUEUE}"), &asked(origin)).await;
            assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::NO_CONTENT, origin));
            assert_eq!(answer.header("access-control-allow-credentials"), "true");
            assert!(answer.header("access-control-allow-methods").contains("POST"));
            let answer = from(&f, "203.0.113.9", "GET /api/v1/queues/concert/status", &[("origin", origin)]).await;
            assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::UNAUTHORIZED, origin), "errors can be read too");
            assert!(answer.headers.get_all("vary").iter().any(|value| value == "Origin"));
        }
        for origin in ["https://evil.example", "null", "https://shop.example.evil", "http://shop.example", "https://app.example:444", ""] {
            let answer = from(&f, "203.0.113.9", &format!("OPTIONS {ENQUEUE}"), &asked(origin)).await;
            assert_eq!(answer.header("access-control-allow-origin"), "", "{origin}");
            let answer = from(&f, "203.0.113.9", "GET /api/v1/queues/concert/status", &[("origin", origin)]).await;
            assert_eq!(answer.header("access-control-allow-origin"), "", "{origin}");
        }
        let now = from(&f, "203.0.113.9", "GET /api/v1/queues/concert/now", &[("origin", "https://any.example")]).await;
        assert_eq!((now.header("access-control-allow-origin"), now.header("access-control-allow-credentials")), ("*", ""));
        let admin = from(&f, "203.0.113.9", "GET /api/v1/admin/queues", &[("origin", "https://app.example")]).await;
        assert_eq!(admin.header("access-control-allow-origin"), "", "operators' calls are nobody's");
        // A form on another site cannot take the position of the one held.
        let forged = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("origin", "https://evil.example")];
        let answer = from(&f, "203.0.113.9", &format!("POST {ENQUEUE}"), &forged).await;
        assert_eq!((answer.status, answer.header("set-cookie")), (StatusCode::FORBIDDEN, ""));
    }

    async fn all_instances_count_the_polls_of_a_place_together(t: TestStore) {
        let (one, _) = fixture(&t).await;
        let room = room::Room::open(t.another().await, room::Options::default()).await.unwrap();
        let services = vec![RoomService::on(room, 600)];
        let two = Fixture::on(t.another().await, Settings::default(), services);
        queue(&one).await;
        enqueue(&one).await;
        let (_, token) = enqueue(&one).await;
        let mut served = 0;
        for n in 0..80 {
            let at = if n % 2 == 0 { &one } else { &two };
            let got = at.call(&token, "GET /api/v1/queues/concert/status", Value::Null).await;
            served += usize::from(got.status == StatusCode::OK);
        }
        assert_eq!(served, 30);
    }
}
