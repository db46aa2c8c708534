//! Stores that are servers, reached by redis-rs.
//!
//! `server/single.rs` is one address, `server/sentinel.rs` a master that Sentinels name,
//! `server/cluster.rs` a cluster. Each opens connections with the settings made here; how a
//! connection is kept is in `link.rs`.

pub(crate) mod address;
pub(crate) mod cluster;
pub(crate) mod sentinel;
pub(crate) mod single;

use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisResult, TlsCertificates, io::tcp::TcpSettings,
};

use crate::{Error, Options, Timeouts};

/// Login and TLS settings of a server.
#[derive(Clone)]
pub(crate) struct ServerLogin {
    pub(crate) redis: RedisConnectionInfo,
    pub(crate) tls: Option<TlsTrust>,
}

/// Trusted certificate authorities.
#[derive(Clone)]
pub(crate) struct TlsTrust {
    /// PEM text of the authorities, in place of the public ones.
    ca: Option<Vec<u8>>,
}

impl TlsTrust {
    /// With the authorities of the options. Makes the process able to speak TLS, if it is not yet.
    pub(crate) fn new(options: &Options) -> Self {
        // An error means that a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { ca: options.tls_ca.clone() }
    }

    pub(crate) fn certificates(&self) -> TlsCertificates {
        TlsCertificates { client_tls: None, root_cert: self.ca.clone() }
    }

    fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        match self.ca {
            Some(_) => Client::build_with_tls(info, self.certificates()),
            None => Client::open(info),
        }
    }
}

impl ServerLogin {
    /// A client for one place.
    pub(crate) fn client(&self, host: &str, port: u16) -> RedisResult<Client> {
        let info = self.info(host, port)?;
        match &self.tls {
            Some(tls) => tls.client(info),
            None => Client::open(info),
        }
    }

    pub(crate) fn info(&self, host: &str, port: u16) -> RedisResult<ConnectionInfo> {
        let info = (host, port).into_connection_info()?;
        let info = match &self.tls {
            None => info,
            Some(_) => info.set_addr(ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: false,
                tls_params: None,
            }),
        };
        Ok(settled(info).set_redis_settings(named(self.redis.clone())))
    }
}

/// A client for the URL of a single server.
pub(crate) fn client(url: &str, options: &Options) -> Result<Client, Error> {
    let info = settled(url.into_connection_info()?);
    let login = named(info.redis_settings().clone());
    let info = info.set_redis_settings(login);
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => Err(Error::invalid(
            "#insecure would trust anybody: give the authority's certificate instead",
        )),
        ConnectionAddr::TcpTls { .. } => Ok(TlsTrust::new(options).client(info)?),
        _ => Ok(Client::open(info)?),
    }
}

/// Reads the authority's certificate that a URL names with `?ca=FILE`.
pub(crate) fn authority(rest: &str, options: &mut Options) -> Result<(), Error> {
    let query = address::query(rest)?;
    if let Some(file) = query.get("ca") {
        let read = std::fs::read(file);
        let read = read.map_err(|error| Error::invalid(format!("cannot read {file}: {error}")))?;
        options.tls_ca = Some(read);
    }
    Ok(())
}

fn settled(info: ConnectionInfo) -> ConnectionInfo {
    info.set_tcp_settings(tcp_settings())
}

fn named(login: RedisConnectionInfo) -> RedisConnectionInfo {
    login.set_lib_name("tidegate", env!("CARGO_PKG_VERSION"))
}

/// No delay for small packets, and a dead peer is noticed by the kernel too.
pub(crate) fn tcp_settings() -> TcpSettings {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive)
}

/// Settings of a connection for ordinary calls.
pub(crate) fn calls(timeouts: Timeouts) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.response))
        // Enough for a burst of web requests; past it callers wait, which the deadline bounds.
        .set_pipeline_buffer_size(1024)
}

/// An address as an operator would write it, without secrets.
pub(crate) fn shown(info: &ConnectionInfo) -> String {
    info.addr().to_string()
}
