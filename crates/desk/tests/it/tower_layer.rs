//! The tower layer, on every store.

use std::{convert::Infallible, net::SocketAddr};

use desk::{
    Identity,
    limit::{Decision, LimitAlgorithm},
    tower::{ClientAddress, HeaderKey, LimitLayer},
};
use http::{HeaderName, Request, Response, StatusCode};
use testkit::each_store;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{limiter, policy};

async fn serve(request: Request<String>) -> Result<Response<String>, Infallible> {
    let status = request.uri().path().trim_start_matches('/').parse().unwrap_or(200);
    let remaining = request.extensions().get::<Decision>().map(|one| one.limits[0].remaining);
    let mut response = Response::new(format!("{remaining:?}"));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    Ok(response)
}

fn from(peer: &str, path: &str) -> Request<String> {
    let mut request = Request::new(String::new());
    *request.uri_mut() = path.parse().unwrap();
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 1));
    request
}

each_store! {
    async fn exactly_the_limit_passes_and_layers_add_their_headers(t: TestStore) {
        let limiter = limiter(&t.store);
        let address = LimitLayer::new(limiter.clone(), ClientAddress::default())
            .policy(policy("address", LimitAlgorithm::Sliding, 3));
        let all = LimitLayer::new(limiter, |_: &Request<String>| Some(Identity::key("all")))
            .policy(policy("all", LimitAlgorithm::Fixed, 100));
        let service = address.layer(all.layer(service_fn(serve)));
        let calls = (0..8).map(|_| service.clone().oneshot(from("192.0.2.7", "/200")));
        let answers = futures_util::future::join_all(calls).await;
        let (passed, denied): (Vec<_>, Vec<_>) =
            answers.into_iter().map(Result::unwrap).partition(|one| one.status() == 200);
        assert_eq!(passed.len(), 3);
        for one in &passed {
            let rules = one.headers()["ratelimit-policy"].to_str().unwrap();
            assert_eq!(rules, "\"all\";q=100;w=60, \"address\";q=3;w=60");
            assert!(one.body().starts_with("Some("), "the inner service sees the decision");
        }
        for one in &denied {
            assert_eq!(one.status(), 429);
            assert_eq!(one.headers()["retry-after"], "60");
            assert_eq!(one.headers()["ratelimit"], "\"address\";r=0;t=60");
        }
        let other = service.clone().oneshot(from("192.0.2.8", "/200")).await.unwrap();
        assert_eq!(other.status(), 200);
        assert!(other.headers()["ratelimit"].to_str().unwrap().starts_with("\"all\";r=96;"));
    }

    async fn requests_without_a_key_are_not_limited_and_failures_are_given_back(t: TestStore) {
        let layer = LimitLayer::new(limiter(&t.store), HeaderKey::new(HeaderName::from_static("x-key")))
            .policy(policy("keys", LimitAlgorithm::Counter, 2))
            .cost(|_, uri| if uri.path() == "/500" { 2 } else { 1 })
            .refund_when(|status| status.is_server_error());
        let mut service = layer.layer(service_fn(serve));
        let mut call = async |key: &'static str, path: &str| {
            let mut request = from("192.0.2.7", path);
            if !key.is_empty() {
                request.headers_mut().insert("x-key", key.parse().unwrap());
            }
            service.ready().await.unwrap().call(request).await.unwrap().status().as_u16()
        };
        for _ in 0..5 {
            assert_eq!(call("", "/200").await, 200);
            assert_eq!(call("a", "/500").await, 500, "each was given back");
        }
        assert_eq!((call("a", "/200").await, call("a", "/404").await, call("a", "/200").await), (200, 404, 429));
        assert_eq!(call("b", "/200").await, 200);
    }
}
