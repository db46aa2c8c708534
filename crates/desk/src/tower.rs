//! A tower layer that charges each request to policies before the inner service sees it.
//!
//! It fits any HTTP server made of tower services (axum, tonic, hyper) and brings none of them. Every
//! response has `RateLimit-Policy` and `RateLimit`, appended to those of layers further in; a denial is
//! 429 with `Retry-After`. The inner service finds the [`Decision`] in the request's extensions.
//! Invariants: a request whose future is dropped is charged once or not at all; readiness is that of the
//! inner service.

use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use ipnet::IpNet;
use store::limit::header as field;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    Error, Identity,
    limit::{Decision, Limiter, Policy},
};

const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Most hops of `X-Forwarded-For` that are looked at.
const HOPS_MAX: usize = 32;

/// Finds the one a request is charged to; `None` for a request that is not limited. Functions do.
pub trait RequestKey<B> {
    /// Returns the identity of a request.
    fn identity(&self, request: &Request<B>) -> Option<Identity>;
}

impl<B, F: Fn(&Request<B>) -> Option<Identity>> RequestKey<B> for F {
    fn identity(&self, request: &Request<B>) -> Option<Identity> {
        self(request)
    }
}

/// The client's address: the peer's, a [`SocketAddr`] in the request's extensions, or the one that trusted
/// proxies name in `X-Forwarded-For`. IPv6 counts by the /64.
#[derive(Clone, Debug, Default)]
pub struct ClientAddress {
    trusted: Vec<IpNet>,
}

impl ClientAddress {
    /// Believes proxies in these networks, and nobody else.
    pub fn trusting(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { trusted: networks.into_iter().collect() }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address.to_canonical()))
    }

    /// The nearest address that no trusted proxy has: what is further away was written by strangers.
    fn find(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let lines = headers.get_all(FORWARDED_FOR).iter().rev();
        let hops = lines.flat_map(|line| {
            let hops = line.to_str().unwrap_or("?").rsplit(',');
            hops.map(|hop| hop.trim().parse::<IpAddr>().ok()).collect::<Vec<_>>()
        });
        let mut nearest = peer;
        for hop in hops.take(HOPS_MAX) {
            let (true, Some(hop)) = (self.trusts(nearest), hop) else { break };
            nearest = hop;
        }
        nearest
    }
}

impl<B> RequestKey<B> for ClientAddress {
    fn identity(&self, request: &Request<B>) -> Option<Identity> {
        let peer = request.extensions().get::<SocketAddr>()?;
        Some(Identity::ip(self.find(peer.ip(), request.headers())))
    }
}

/// The value of a header, such as an API key; a request without it is not limited here.
#[derive(Clone, Debug)]
pub struct HeaderKey(HeaderName);

impl HeaderKey {
    /// Takes the value of this header.
    pub fn new(name: HeaderName) -> Self {
        Self(name)
    }
}

impl<B> RequestKey<B> for HeaderKey {
    fn identity(&self, request: &Request<B>) -> Option<Identity> {
        let value = request.headers().get(&self.0)?;
        Some(Identity::key(&String::from_utf8_lossy(value.as_bytes())))
    }
}

type Cost = Arc<dyn Fn(&http::Method, &http::Uri) -> u64 + Send + Sync>;
type RefundWhen = Arc<dyn Fn(StatusCode) -> bool + Send + Sync>;

/// Limits the requests of a service.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{convert::Infallible, time::Duration};
/// use http::{Request, Response};
/// use tidegate_desk::{Identity, Prefix, limit::{LimitAlgorithm, Limiter, Policy}, tower::LimitLayer};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
///
/// let store = tidegate_desk::store::Store::open("embedded:").await?;
/// let limiter = Limiter::new(&store, &Prefix::default())?;
/// let api = Policy::new(None, LimitAlgorithm::Sliding, 1, Duration::from_secs(60))?;
/// let key = |_: &Request<String>| Some(Identity::user("123"));
/// let mut service = ServiceBuilder::new()
///     .layer(LimitLayer::new(limiter, key).policy(api))
///     .service(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
/// let first = service.ready().await?.call(Request::new(String::new())).await?;
/// assert_eq!(first.headers()["ratelimit"], "\"default\";r=0;t=60");
/// let second = service.ready().await?.call(Request::new(String::new())).await?;
/// assert_eq!(second.status(), 429);
/// assert_eq!(second.headers()["retry-after"], "60");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LimitLayer<K>(Arc<LayerInner<K>>);

struct LayerInner<K> {
    limiter: Limiter,
    policies: Vec<Policy>,
    key: K,
    cost: Option<Cost>,
    refund_when: Option<RefundWhen>,
}

impl<K> fmt::Debug for LimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").field("policies", &self.0.policies).finish_non_exhaustive()
    }
}

impl<K> LimitLayer<K> {
    /// Charges requests to whoever `key` finds. Without a policy it limits nothing.
    pub fn new(limiter: Limiter, key: K) -> Self {
        Self(Arc::new(LayerInner {
            limiter,
            policies: Vec::new(),
            key,
            cost: None,
            refund_when: None,
        }))
    }

    /// Adds a policy; a request is charged to all of them or to none. At most 16.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        self.change(|inner| inner.policies.push(policy))
    }

    /// Sets the units a request takes; one unless set, and 0 only looks.
    #[must_use]
    pub fn cost(
        self,
        cost: impl Fn(&http::Method, &http::Uri) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.change(|inner| inner.cost = Some(Arc::new(cost)))
    }

    /// Gives back what a request was charged when its response has such a status.
    #[must_use]
    pub fn refund_when(
        self,
        is_refunded: impl Fn(StatusCode) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.change(|inner| inner.refund_when = Some(Arc::new(is_refunded)))
    }

    /// Changes a layer that is being made; nobody else has it yet.
    fn change(mut self, change: impl FnOnce(&mut LayerInner<K>)) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            change(inner);
        }
        self
    }
}

impl<S, K> Layer<S> for LimitLayer<K> {
    type Service = LimitService<S, K>;

    fn layer(&self, inner: S) -> LimitService<S, K> {
        LimitService { inner, layer: LimitLayer(Arc::clone(&self.0)) }
    }
}

/// A service whose requests are limited; [`LimitLayer`] makes it.
#[derive(Clone, Debug)]
pub struct LimitService<S, K> {
    inner: S,
    layer: LimitLayer<K>,
}

impl<S, K, B, R> Service<Request<B>> for LimitService<S, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    K: RequestKey<B> + Send + Sync + 'static,
    B: Send + 'static,
    R: From<String> + Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // The one that is ready is called; its clone has to become ready first.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer = LimitLayer(Arc::clone(&self.layer.0));
        Box::pin(async move {
            let Some(identity) = layer.0.key.identity(&request) else {
                return inner.call(request).await;
            };
            let policies: Vec<&Policy> = layer.0.policies.iter().collect();
            if policies.is_empty() {
                return inner.call(request).await;
            }
            let cost =
                layer.0.cost.as_ref().map_or(1, |cost| cost(request.method(), request.uri()));
            let charged = layer.0.limiter.now();
            let decision = match layer.0.limiter.check(&identity, &policies, cost).await {
                Ok(decision) => decision,
                Err(error) => return Ok(failure(&error)),
            };
            if !decision.allowed {
                return Ok(denial(&policies, &decision));
            }
            request.extensions_mut().insert(decision.clone());
            let mut response = inner.call(request).await?;
            let refunds = layer.0.refund_when.as_ref();
            if cost > 0 && refunds.is_some_and(|is_refunded| is_refunded(response.status())) {
                for policy in &policies {
                    let id = &decision.request_id;
                    // What cannot be given back frees itself with its window.
                    let given = layer.0.limiter.refund(&identity, policy, id, cost, charged).await;
                    if let Err(error) = given {
                        tracing::debug!(%error, "a request was not refunded");
                    }
                }
            }
            add_headers(response.headers_mut(), &policies, &decision);
            Ok(response)
        })
    }
}

/// Adds the state of the policies to what inner layers have said of theirs.
fn add_headers(headers: &mut HeaderMap, policies: &[&Policy], decision: &Decision) {
    let told = policies.iter().zip(&decision.limits).filter(|(_, state)| !state.shadow);
    let (mut rules, mut states) = (Vec::new(), Vec::new());
    for (policy, state) in told {
        let name = state.policy.as_ref().map_or("default", |name| name.as_str());
        rules.push(field::policy_item(name, state.limit, policy.counted_window()));
        states.push(field::state_item(name, state.remaining, state.reset.max(state.retry_after)));
    }
    for (name, own) in [(RATE_LIMIT_POLICY, rules), (RATE_LIMIT, states)] {
        let inner = headers.get(&name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let all: Vec<String> = inner.into_iter().chain(own).collect();
        if let (false, Ok(value)) = (all.is_empty(), HeaderValue::from_str(&all.join(", "))) {
            headers.insert(name, value);
        }
    }
}

fn denial<R: From<String>>(policies: &[&Policy], decision: &Decision) -> Response<R> {
    let wait = decision.limits.iter().filter(|state| !state.shadow && !state.retry_after.is_zero());
    let wait = wait.map(|state| state.reset.max(state.retry_after)).max().unwrap_or_default();
    let seconds = field::ceil_seconds(wait).max(1);
    let mut response = Response::new(R::from(format!("too many requests; retry in {seconds} s\n")));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    add_headers(response.headers_mut(), policies, decision);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// A request that cannot be charged: a mistake in how the layer was made, or a store that refused.
fn failure<R: From<String>>(error: &Error) -> Response<R> {
    tracing::error!(%error, "a request was not limited and not served");
    let mut response = Response::new(R::from("the rate limit could not be checked\n".to_owned()));
    *response.status_mut() = match error {
        Error::Store(_) | Error::Archive { .. } => StatusCode::SERVICE_UNAVAILABLE,
        // The others are of the chat and never come from a limit.
        Error::Invalid { .. }
        | Error::NotFound { .. }
        | Error::Conflict { .. }
        | Error::Forbidden { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let wait = HeaderValue::from(Duration::from_secs(1).as_secs());
    response.headers_mut().insert(header::RETRY_AFTER, wait);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_say_who_the_client_is() {
        let key = ClientAddress::trusting(["10.0.0.0/8".parse().unwrap()]);
        let find = |peer: &str, forwarded: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in forwarded {
                headers.append(FORWARDED_FOR, HeaderValue::from_static(line));
            }
            key.find(peer.parse().unwrap(), &headers).to_string()
        };
        assert_eq!(find("203.0.113.7", &["198.51.100.1"]), "203.0.113.7", "a stranger's word");
        assert_eq!(find("10.0.0.1", &["198.51.100.1, 203.0.113.7"]), "203.0.113.7");
        assert_eq!(find("10.0.0.1", &["203.0.113.7, 10.0.0.2"]), "203.0.113.7");
        assert_eq!(find("10.0.0.1", &["198.51.100.1", "203.0.113.7"]), "203.0.113.7");
        assert_eq!(find("10.0.0.1", &["203.0.113.7, nonsense"]), "10.0.0.1");
        assert_eq!(find("10.0.0.1", &[]), "10.0.0.1");
    }
}
