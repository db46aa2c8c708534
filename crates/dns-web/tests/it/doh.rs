//! DNS over HTTPS, RFC 8484.

use axum::body::Body;
use axum::http::Request;

use crate::support::{Server, query};

fn post(path: &str, body: &[u8]) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/dns-message");
    request.body(Body::from(body.to_vec())).unwrap()
}

testkit::each_store! {
    async fn a_query_is_answered_by_get_and_by_post(t: TestStore) {
        let s = Server::start(&t).await;
        let query = query("shop.example");
        let encoded = "AAcBAAABAAAAAAAABHNob3AHZXhhbXBsZQAAAQAB";
        let get = Request::get(format!("/dns-query?dns={encoded}")).body(Body::empty()).unwrap();
        for request in [get, post("/dns-query", &query), post("/dns-query/tablet", &query)] {
            let (status, headers, reply) = s.send(request).await;
            assert_eq!(status, 200);
            assert_eq!(headers["content-type"], "application/dns-message");
            let age: u32 = headers["cache-control"].to_str().unwrap().strip_prefix("max-age=").unwrap().parse().unwrap();
            assert!((1..=300).contains(&age), "the TTL that is left: {age}");
            assert!(!headers.contains_key("access-control-allow-origin"));
            assert_eq!((&reply[..2], &reply[reply.len() - 4..]), (&[0, 7][..], &[192, 0, 2, 7][..]));
        }
        s.stop().await;
    }

    async fn what_is_no_query_is_refused_with_the_status_it_deserves(t: TestStore) {
        let s = Server::start(&t).await;
        let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
        let other = |kind: &str| Request::post("/dns-query").header("content-type", kind).body(Body::from("x")).unwrap();
        for (request, expected) in [
            (get("/dns-query"), 400),
            (get("/dns-query?dns=***"), 400),
            (get("/dns-query?dns=AAA"), 400),
            (get(&format!("/dns-query?dns={}", "A".repeat(7_000))), 413),
            (get("/dns-query/a/b"), 404),
            (Request::delete("/dns-query").body(Body::empty()).unwrap(), 405),
            (other("application/json"), 415),
            (post("/dns-query", &[0; 5_000]), 413),
            (post("/dns-query", b"short"), 400),
        ] {
            let at = format!("{} {}", request.method(), request.uri());
            let (status, headers, body) = s.send(request).await;
            assert_eq!(status, expected, "{at}: {}", String::from_utf8_lossy(&body));
            if expected == 405 {
                assert_eq!(headers["allow"], "GET, POST");
            }
            // The frame answers for paths and methods that are not there.
            if ![404, 405].contains(&expected) {
                assert!(headers["content-type"].to_str().unwrap().starts_with("text/plain"), "{at}");
            }
        }
        let asked = Request::get("/dns-query").header("accept", "application/json").body(Body::empty()).unwrap();
        let (status, _, body) = s.send(asked).await;
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status.as_u16(), &body["error"]["code"]), (400, &serde_json::json!("INVALID_REQUEST")));
        s.stop().await;
    }
}
