//! The HTTP client of the resolver: queries to DoH upstreams, and list sources.
//!
//! Bytes are moved and nothing is judged: names were resolved and addresses checked by the resolver,
//! which also follows redirects. Invariants: every wait has a deadline, every body a bound, every
//! connection's task an owner that ends it.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use bytes::Bytes;
use dns::{Exchange, ExchangeRequest, Fetch, FetchReply, FetchRequest, RemoteError, Validators};
use flate2::write::GzDecoder;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// Longest DNS message.
const MESSAGE_MAX_BYTES: usize = 65_535;

/// Time for one address to connect before the next is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest pause between two pieces of a list.
const BODY_PAUSE: Duration = Duration::from_secs(30);

/// Connections to DoH upstreams that are kept.
const POOL_MAX: usize = 64;

/// Compressed bytes inflated in one step, so that a step yields a few megabytes at most.
const INFLATE_STEP_BYTES: usize = 4_096;

const DNS_MESSAGE: &str = "application/dns-message";

/// Speaks HTTP for the resolver. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct RemoteClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Offers HTTP/2, for DoH.
    doh_tls: TlsConnectorHolder,
    /// Offers HTTP/1.1, for lists: one request each.
    list_tls: TlsConnectorHolder,
    pool: Mutex<HashMap<String, Arc<PooledConnection>>>,
    tasks: TaskTracker,
}

struct TlsConnectorHolder(TlsConnector);

impl std::fmt::Debug for TlsConnectorHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConnector")
    }
}

/// An HTTP/2 connection that many queries share.
#[derive(Debug)]
struct PooledConnection {
    sender: http2::SendRequest<Full<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl RemoteClient {
    /// Makes a client that trusts the system's certificate authorities, or those of a PEM file.
    pub(crate) fn new(
        authorities: Option<&Path>,
    ) -> Result<RemoteClient, web::serve::tls::TlsError> {
        let connector = |protocols: &[&[u8]]| -> Result<_, web::serve::tls::TlsError> {
            let mut config = web::serve::tls::client(authorities)?;
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Ok(TlsConnectorHolder(TlsConnector::from(Arc::new(config))))
        };
        Ok(RemoteClient(Arc::new(Inner {
            doh_tls: connector(&[b"h2", b"http/1.1"])?,
            list_tls: connector(&[b"http/1.1"])?,
            pool: Mutex::default(),
            tasks: TaskTracker::new(),
        })))
    }
}

fn unreachable(error: impl std::fmt::Display) -> RemoteError {
    RemoteError::Unreachable(error.to_string())
}

fn unusable(reason: impl Into<String>) -> RemoteError {
    RemoteError::Unusable(reason.into())
}

/// The parts of a URL that a request needs.
struct Target {
    uri: Uri,
    host: String,
    is_https: bool,
}

impl Target {
    fn parse(url: &str) -> Result<Target, RemoteError> {
        let uri: Uri = url.parse().map_err(|_| unusable(format!("{url:?} is not a URL")))?;
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(unusable(format!("{url:?} is neither http:// nor https://"))),
        };
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Target { uri, host, is_https })
    }

    fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    fn server_name(&self) -> Result<ServerName<'static>, RemoteError> {
        ServerName::try_from(self.host.clone())
            .map_err(|_| unusable(format!("{:?} is not the name of a host", self.host)))
    }
}

/// Connects to the first address that answers.
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, RemoteError> {
    let mut failure = RemoteError::Unreachable("it has no address".to_owned());
    for address in addresses {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A peer that is gone already is noticed by the first write.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => failure = unreachable(format!("{address}: {error}")),
            Err(_) => failure = unreachable(format!("{address} does not answer")),
        }
    }
    Err(failure)
}

fn tls_error(error: &std::io::Error) -> RemoteError {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match tls {
        Some(error @ rustls::Error::InvalidCertificate(_)) => {
            RemoteError::Certificate(error.to_string())
        }
        _ => unreachable(error),
    }
}

impl Exchange for RemoteClient {
    fn exchange(
        &self,
        request: ExchangeRequest,
    ) -> BoxFuture<'static, Result<Vec<u8>, RemoteError>> {
        let client = self.clone();
        Box::pin(async move {
            let timeout = request.timeout;
            let exchanged = tokio::time::timeout(timeout, client.exchange_now(&request)).await;
            exchanged.unwrap_or(Err(RemoteError::Timeout))
        })
    }
}

impl RemoteClient {
    async fn exchange_now(&self, request: &ExchangeRequest) -> Result<Vec<u8>, RemoteError> {
        let target = Target::parse(&request.url)?;
        let key = format!("{} {:?}", target.authority(), request.addresses);
        // A connection that the server closed while it rested is replaced once.
        if let Some(known) = self.pooled(&key) {
            match send_shared(&known, &target, &request.message).await {
                Ok(response) => return read_message(response).await,
                Err(_) => self.forget(&key, &known),
            }
        }
        let stream = connect(&request.addresses).await?;
        if !target.is_https {
            return Err(unusable("DNS over HTTPS needs https://"));
        }
        let name = target.server_name()?;
        let stream = self.0.doh_tls.0.connect(name, stream).await;
        let stream = stream.map_err(|error| tls_error(&error))?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            // Rare, and not kept: a server for DNS without HTTP/2.
            let (mut sender, driver) =
                http1::handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
            let _driver = AbortOnDropHandle::new(self.0.tasks.spawn(async {
                // Its error is the request's.
                let _ = driver.await;
            }));
            let response = sender.send_request(message_request(&target, &request.message)?);
            return read_message(response.await.map_err(unreachable)?).await;
        }
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, driver) = handshake.map_err(unreachable)?;
        let driver = AbortOnDropHandle::new(self.0.tasks.spawn(async {
            let _ = driver.await;
        }));
        let fresh = Arc::new(PooledConnection { sender, _driver: driver });
        let response = send_shared(&fresh, &target, &request.message).await?;
        self.keep(key, fresh);
        read_message(response).await
    }

    fn keep(&self, key: String, connection: Arc<PooledConnection>) {
        let mut pool = self.0.pool.lock();
        if pool.len() >= POOL_MAX {
            pool.clear();
        }
        pool.insert(key, connection);
    }

    fn pooled(&self, key: &str) -> Option<Arc<PooledConnection>> {
        let known = self.0.pool.lock().get(key).cloned()?;
        if known.sender.is_closed() {
            self.forget(key, &known);
            return None;
        }
        Some(known)
    }

    fn forget(&self, key: &str, connection: &Arc<PooledConnection>) {
        let mut pool = self.0.pool.lock();
        if pool.get(key).is_some_and(|kept| Arc::ptr_eq(kept, connection)) {
            pool.remove(key);
        }
    }
}

impl RemoteClient {
    /// Posts a body; any status of success is fine.
    pub(crate) async fn post(
        &self,
        url: &str,
        media_type: &'static str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(), RemoteError> {
        let posted = tokio::time::timeout(timeout, self.post_now(url, media_type, body)).await;
        posted.unwrap_or(Err(RemoteError::Timeout))
    }

    async fn post_now(
        &self,
        url: &str,
        media_type: &'static str,
        body: Bytes,
    ) -> Result<(), RemoteError> {
        let target = Target::parse(url)?;
        let port = target.uri.port_u16().unwrap_or(if target.is_https { 443 } else { 80 });
        let found = tokio::net::lookup_host((target.host.as_str(), port)).await;
        let addresses: Vec<SocketAddr> = found.map_err(unreachable)?.collect();
        let stream = connect(&addresses).await?;
        let request = Request::post(target.path())
            .header(header::HOST, target.authority())
            .header(header::CONTENT_TYPE, media_type)
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .map_err(|error| unusable(error.to_string()))?;
        let status = if target.is_https {
            let stream = self.0.list_tls.0.connect(target.server_name()?, stream).await;
            let stream = stream.map_err(|error| tls_error(&error))?;
            self.send_once(TokioIo::new(stream), request).await?
        } else {
            self.send_once(TokioIo::new(stream), request).await?
        };
        if status.is_success() { Ok(()) } else { Err(RemoteError::Status(status.as_u16())) }
    }

    async fn send_once<T>(
        &self,
        io: TokioIo<T>,
        request: Request<Full<Bytes>>,
    ) -> Result<StatusCode, RemoteError>
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let (mut sender, driver) = http1::handshake(io).await.map_err(unreachable)?;
        let _driver = AbortOnDropHandle::new(self.0.tasks.spawn(async {
            // Its error is the request's.
            let _ = driver.await;
        }));
        let response = sender.send_request(request).await.map_err(unreachable)?;
        Ok(response.status())
    }
}

fn message_request(target: &Target, message: &[u8]) -> Result<Request<Full<Bytes>>, RemoteError> {
    Request::post(target.uri.clone())
        .header(header::HOST, target.authority())
        .header(header::CONTENT_TYPE, DNS_MESSAGE)
        .header(header::ACCEPT, DNS_MESSAGE)
        .body(Full::new(Bytes::copy_from_slice(message)))
        .map_err(|error| unusable(error.to_string()))
}

async fn send_shared(
    connection: &PooledConnection,
    target: &Target,
    message: &[u8],
) -> Result<Response<Incoming>, RemoteError> {
    let mut request = message_request(target, message)?;
    // In HTTP/2 the authority of the URL says it.
    request.headers_mut().remove(header::HOST);
    let mut sender = connection.sender.clone();
    sender.ready().await.map_err(unreachable)?;
    sender.send_request(request).await.map_err(unreachable)
}

async fn read_message(response: Response<Incoming>) -> Result<Vec<u8>, RemoteError> {
    if response.status() != StatusCode::OK {
        return Err(RemoteError::Status(response.status().as_u16()));
    }
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if essence != Some(DNS_MESSAGE) {
        return Err(unusable("it is not a DNS message"));
    }
    let body = Limited::new(response.into_body(), MESSAGE_MAX_BYTES);
    let body = body.collect().await.map_err(|error| unusable(error.to_string()))?;
    Ok(body.to_bytes().to_vec())
}

impl Fetch for RemoteClient {
    fn fetch(&self, request: FetchRequest) -> BoxFuture<'static, Result<FetchReply, RemoteError>> {
        let client = self.clone();
        Box::pin(async move {
            let timeout = request.timeout;
            let fetched = tokio::time::timeout(timeout, client.fetch_now(request)).await;
            fetched.unwrap_or(Err(RemoteError::Timeout))
        })
    }
}

impl RemoteClient {
    async fn fetch_now(&self, request: FetchRequest) -> Result<FetchReply, RemoteError> {
        let target = Target::parse(&request.url)?;
        let stream = connect(&request.addresses).await?;
        let (response, driver) = if target.is_https {
            let name = target.server_name()?;
            let stream = self.0.list_tls.0.connect(name, stream).await;
            let stream = stream.map_err(|error| tls_error(&error))?;
            self.get(&target, &request.validators, TokioIo::new(stream)).await?
        } else {
            self.get(&target, &request.validators, TokioIo::new(stream)).await?
        };
        let text = |name: header::HeaderName| {
            let value = response.headers().get(name);
            value.and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED => return Ok(FetchReply::NotModified),
            status if status.is_redirection() => {
                let location = text(header::LOCATION);
                let location = location.ok_or_else(|| unusable("a redirect without a location"))?;
                return Ok(FetchReply::Redirect { location });
            }
            status => return Err(RemoteError::Status(status.as_u16())),
        }
        let validators =
            Validators { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED) };
        let encoding = text(header::CONTENT_ENCODING).unwrap_or_default().to_ascii_lowercase();
        let decoder = match encoding.as_str() {
            "" | "identity" => None,
            "gzip" | "x-gzip" => Some(GzDecoder::new(Vec::new())),
            other => return Err(unusable(format!("its content encoding is {other}"))),
        };
        let state =
            BodyState { body: response.into_body(), decoder, _driver: driver, is_done: false };
        let pieces = stream::unfold(state, |mut state| async {
            let piece = state.next().await?;
            Some((piece, state))
        });
        Ok(FetchReply::Body { validators, body: pieces.boxed() })
    }

    async fn get<T>(
        &self,
        target: &Target,
        validators: &Validators,
        io: TokioIo<T>,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), RemoteError>
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let (mut sender, driver) = http1::handshake(io).await.map_err(unreachable)?;
        let driver = AbortOnDropHandle::new(self.0.tasks.spawn(async {
            // Its error is the request's, or the body's.
            let _ = driver.await;
        }));
        let mut get = Request::get(target.path())
            .header(header::HOST, target.authority())
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "text/plain, */*")
            .header(header::ACCEPT_ENCODING, "gzip");
        // A validator that is no header value was not ours.
        let value = |text: &Option<String>| text.as_deref().map(HeaderValue::from_str)?.ok();
        if let Some(etag) = value(&validators.etag) {
            get = get.header(header::IF_NONE_MATCH, etag);
        }
        if let Some(since) = value(&validators.last_modified) {
            get = get.header(header::IF_MODIFIED_SINCE, since);
        }
        let request =
            get.body(Full::<Bytes>::default()).map_err(|error| unusable(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(unreachable)?;
        Ok((response, driver))
    }
}

/// A body being read, its encoding undone on the way.
struct BodyState {
    body: Incoming,
    decoder: Option<GzDecoder<Vec<u8>>>,
    _driver: AbortOnDropHandle<()>,
    is_done: bool,
}

impl BodyState {
    async fn next(&mut self) -> Option<Result<Bytes, RemoteError>> {
        if self.is_done {
            return None;
        }
        loop {
            let frame = match tokio::time::timeout(BODY_PAUSE, self.body.frame()).await {
                Err(_) => return Some(self.fail(RemoteError::Timeout)),
                Ok(Some(Err(error))) => return Some(self.fail(unreachable(error))),
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => {
                    self.is_done = true;
                    let rest = self.decoder.take()?.finish();
                    return match rest {
                        Ok(rest) if rest.is_empty() => None,
                        Ok(rest) => Some(Ok(rest.into())),
                        Err(_) => Some(Err(unusable("its compressed data is damaged"))),
                    };
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            let Some(decoder) = &mut self.decoder else { return Some(Ok(data)) };
            let mut inflated = Vec::new();
            for step in data.chunks(INFLATE_STEP_BYTES) {
                if decoder.write_all(step).is_err() {
                    return Some(self.fail(unusable("its compressed data is damaged")));
                }
                inflated.append(decoder.get_mut());
            }
            if !inflated.is_empty() {
                return Some(Ok(inflated.into()));
            }
        }
    }

    fn fail(&mut self, error: RemoteError) -> Result<Bytes, RemoteError> {
        self.is_done = true;
        Err(error)
    }
}
