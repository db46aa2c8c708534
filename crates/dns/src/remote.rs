//! Traits for all that needs HTTP, which this crate does not speak: DoH upstreams and list sources.
//!
//! An implementation moves bytes and judges nothing. Names are resolved here, by the bootstrap
//! servers, and come along as addresses to connect to; the host name of the URL is for TLS and the
//! `Host` header only. Redirects are not followed but handed back, so that the address they lead to is
//! checked as the first one was.

use std::{fmt, net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};

/// Sends queries to DoH upstreams (RFC 8484).
pub trait Exchange: Send + Sync + fmt::Debug {
    /// Sends a message by POST and returns the message in the reply. Connections are reused; one that
    /// turns out to be closed is replaced once, without an error.
    fn exchange(
        &self,
        request: ExchangeRequest,
    ) -> BoxFuture<'static, Result<Vec<u8>, RemoteError>>;
}

/// A query to a DoH upstream.
#[derive(Clone, Debug)]
pub struct ExchangeRequest {
    /// URL, such as `https://dns.example/dns-query`.
    pub url: String,
    /// Addresses of its host; the first that connects is used.
    pub addresses: Vec<SocketAddr>,
    /// The query in wire form.
    pub message: Vec<u8>,
    /// Time for the whole exchange.
    pub timeout: Duration,
}

/// Fetches list sources.
pub trait Fetch: Send + Sync + fmt::Debug {
    /// Sends one GET, conditional if there are validators. Follows no redirect.
    fn fetch(&self, request: FetchRequest) -> BoxFuture<'static, Result<FetchReply, RemoteError>>;
}

/// A GET of a list source.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// URL, `http://` or `https://`.
    pub url: String,
    /// Addresses of its host; the first that connects is used.
    pub addresses: Vec<SocketAddr>,
    /// Validators of the copy at hand.
    pub validators: Validators,
    /// Time until the reply's header is there.
    pub timeout: Duration,
}

/// Validators of a copy, as its source gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Validators {
    /// `ETag`, for `If-None-Match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// `Last-Modified`, for `If-Modified-Since`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

/// Reply to a [`FetchRequest`].
pub enum FetchReply {
    /// The list, its content encoding (gzip) undone. Its length is bounded by the reader.
    Body {
        /// Validators for the next time.
        validators: Validators,
        /// The bytes.
        body: BoxStream<'static, Result<Bytes, RemoteError>>,
    },
    /// The copy at hand is current.
    NotModified,
    /// The list is elsewhere.
    Redirect {
        /// The `Location` header, absolute or relative.
        location: String,
    },
}

impl fmt::Debug for FetchReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body { validators, .. } => f.debug_tuple("Body").field(validators).finish(),
            Self::NotModified => f.write_str("NotModified"),
            Self::Redirect { location } => f.debug_tuple("Redirect").field(location).finish(),
        }
    }
}

/// Error of an exchange over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// No connection, or it broke.
    #[error("cannot reach the server: {0}")]
    Unreachable(String),
    /// The certificate is not good for this host.
    #[error("the server's certificate is not accepted: {0}")]
    Certificate(String),
    /// It took too long.
    #[error("the server did not answer in time")]
    Timeout,
    /// Another status than expected.
    #[error("the server answered with status {0}")]
    Status(u16),
    /// The reply is not what was asked for.
    #[error("the server's answer cannot be used: {0}")]
    Unusable(String),
}
