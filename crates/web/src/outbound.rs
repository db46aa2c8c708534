//! One HTTP call to another server, over a connection of its own: for webhooks, web push and traces. No
//! redirect is followed, the answer is read up to a bound; the caller sets the deadline.
//!
//! Others post through [`Webhooks::post`](crate::webhook::Webhooks::post), which decides where nothing is sent
//! to; what speaks another protocol looks hosts up with [`resolve`], by the same rule.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::chain;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 16 * 1024;

/// The answer of another server.
#[derive(Debug)]
pub struct OutboundAnswer {
    /// Status.
    pub status: StatusCode,
    /// The pause it asks for.
    pub retry_after: Option<Duration>,
    /// Its beginning; empty if it could not be read.
    pub body: Bytes,
}

/// The reason a call to another server came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboundError {
    /// Trying again may help.
    Failed(String),
    /// Nothing is sent there.
    Refused(String),
}

/// Looks a host up and returns the addresses that may be used: none of loopback or a private network, unless
/// it is allowed.
///
/// # Errors
/// It cannot be looked up, or has only addresses to which nothing is sent.
pub async fn resolve(
    host: &str,
    port: u16,
    allowed: &[IpNet],
) -> Result<Vec<SocketAddr>, OutboundError> {
    crate::webhook::address::resolve(host, port, allowed).await
}

/// Checks a URL that a stranger names: over https, not at an address to which nothing is sent. Over http only
/// to an address, not a name, of a network that is allowed, as tests do.
///
/// # Errors
/// The reason.
pub fn check_https(url: &str, allowed: &[IpNet]) -> Result<(), String> {
    let url = crate::webhook::address::TargetUrl::parse(url, allowed)?;
    let is_allowed = |ip: IpAddr| allowed.iter().any(|network| network.contains(&ip));
    if url.is_https() || url.host().parse().is_ok_and(is_allowed) {
        return Ok(());
    }
    Err("a URL that begins with https://".to_owned())
}

/// Sends a request to the first of these addresses that answers; with TLS if a name is given that
/// the certificate must be for.
pub(crate) async fn send(
    addresses: &[SocketAddr],
    tls: Option<(&str, Arc<rustls::ClientConfig>)>,
    request: Request<Full<Bytes>>,
) -> Result<OutboundAnswer, String> {
    let socket = connect(addresses).await?;
    let Some((host, config)) = tls else { return exchange(socket, request).await };
    let name = ServerName::try_from(host.to_owned()).map_err(|error| chain(&error))?;
    let socket = TlsConnector::from(config).connect(name, socket).await;
    exchange(socket.map_err(|error| chain(&error))?, request).await
}

/// Connects to the first address that answers. No name is looked up again.
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    let mut latest = "no address".to_owned();
    for address in addresses.iter().take(3) {
        latest = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => format!("{address}: {error}"),
            Err(_) => format!("{address}: no connection within 5 seconds"),
        };
    }
    Err(latest)
}

async fn exchange<S>(socket: S, request: Request<Full<Bytes>>) -> Result<OutboundAnswer, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
        .await
        .map_err(|error| chain(&error))?;
    let exchange = async move {
        let response = sender.send_request(request).await.map_err(|error| chain(&error))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        // What is wrong with the body of an answer does not change its status.
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Ok(OutboundAnswer { status, retry_after, body })
    };
    let (mut exchange, mut connection) = (pin!(exchange), pin!(connection));
    let mut is_open = true;
    loop {
        tokio::select! {
            biased;
            answer = &mut exchange => return answer,
            // The exchange tells what went wrong with it.
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}
