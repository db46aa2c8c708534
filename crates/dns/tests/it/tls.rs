//! DNS over TLS, both ways: our listener, asked by our upstream side; and DoH upstreams by the trait.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use dns::{
    Exchange, ExchangeRequest, ListenOptions, Listeners, Policy, QueryBatch, RemoteError, Resolver,
    ResolverOptions, UpstreamError, UpstreamNeeds, UpstreamOptions, Upstreams,
    wire::{AnswerKind, TtlBounds},
};
use futures_util::future::BoxFuture;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use store::Store;
use testkit::tls::Certificates;

use crate::support::{ScriptedUpstream, address_reply, question};

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn server_config(certificates: &Certificates) -> Arc<ServerConfig> {
    let folder = certificates.folder();
    let chain = CertificateDer::pem_file_iter(folder.join("server.pem")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

fn client_config(certificates: &Certificates) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(&certificates.ca().unwrap()).unwrap();
    roots.add(authority).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

struct TlsServer {
    resolver: Resolver,
    listeners: Listeners,
    config: Arc<ArcSwap<ServerConfig>>,
    _upstream: ScriptedUpstream,
}

impl TlsServer {
    async fn start(certificates: &Certificates, policy: Policy) -> Self {
        let upstream = ScriptedUpstream::start(|query, _| vec![address_reply(query, 300, 7)]).await;
        let options = ResolverOptions {
            upstream: UpstreamOptions {
                servers: vec![upstream.address()],
                ..UpstreamOptions::default()
            },
            default_policy: policy,
            ..ResolverOptions::default()
        };
        let store = Store::open("embedded:").await.unwrap();
        let resolver = Resolver::open(store, options).await.unwrap();
        let config = Arc::new(ArcSwap::new(server_config(certificates)));
        let listen = ListenOptions {
            addresses: vec![],
            tls_addresses: vec!["127.0.0.1:0".parse().unwrap()],
            tls: Some(Arc::clone(&config)),
            tls_host: Some("localhost".to_owned()),
            ..ListenOptions::default()
        };
        let listeners = Listeners::open(&resolver, listen).await.unwrap();
        Self { resolver, listeners, config, _upstream: upstream }
    }

    /// Upstreams that ask this server under a host name.
    fn asked_as(&self, host: &str, certificates: &Certificates) -> Upstreams {
        let port = self.listeners.tls_addresses()[0].port();
        let server = format!("tls://{host}:{port}").parse::<dns::UpstreamAddress>().unwrap();
        let tls = Some(client_config(certificates));
        let options = UpstreamOptions {
            servers: vec![server],
            timeout: Duration::from_secs(20),
            ..UpstreamOptions::default()
        };
        Upstreams::with_needs(options, UpstreamNeeds::new(tls, None))
    }

    async fn close(self) {
        self.listeners.close().await;
        self.resolver.close().await;
    }
}

async fn ask(upstreams: &Upstreams, name: &str) -> Result<u8, UpstreamError> {
    let asked = question(name);
    let answer = upstreams.ask(&asked, AnswerKind::Plain, TtlBounds::default()).await?.answer;
    Ok(*answer.as_wire().last().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_over_tls_are_answered_and_certificates_are_checked() {
    let certificates = Certificates::make().unwrap();
    let server = TlsServer::start(&certificates, Policy::default()).await;
    let upstreams = server.asked_as("127.0.0.1", &certificates);
    for number in 0..5 {
        assert_eq!(ask(&upstreams, &format!("www{number}.test")).await, Ok(7));
    }
    // Of another authority: not trusted, whatever the address is.
    let others = Certificates::make().unwrap();
    let untrusting = server.asked_as("127.0.0.1", &others);
    assert_eq!(ask(&untrusting, "www.test").await, Err(UpstreamError::Untrusted));
    assert_eq!(untrusting.stats()[0].last_failure, Some(UpstreamError::Untrusted));
    // A certificate that is replaced counts for the next connection.
    server.config.store(server_config(&others));
    assert_eq!(ask(&untrusting, "www.test").await, Ok(7));
    // Records say which protocol was spoken.
    let mut batch = QueryBatch::default();
    server.resolver.queries().drain(&mut batch);
    assert!(batch.len() >= 6 && batch.iter().all(|(r, ..)| r.protocol == dns::QueryProtocol::Tls));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_tls_is_refused() {
    let upstream = ScriptedUpstream::start(|_, _| vec![]).await;
    let options = ResolverOptions {
        upstream: UpstreamOptions { servers: vec![upstream.address()], ..Default::default() },
        ..ResolverOptions::default()
    };
    let resolver = Resolver::open(Store::open("embedded:").await.unwrap(), options).await.unwrap();
    let listen = ListenOptions {
        addresses: vec![],
        tls_addresses: vec!["127.0.0.1:0".parse().unwrap()],
        ..ListenOptions::default()
    };
    let error = Listeners::open(&resolver, listen).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    resolver.close().await;
}

/// A way to DoH servers that answers by itself.
#[derive(Debug)]
struct ScriptedExchange;

impl Exchange for ScriptedExchange {
    fn exchange(
        &self,
        request: ExchangeRequest,
    ) -> BoxFuture<'static, Result<Vec<u8>, RemoteError>> {
        Box::pin(async move {
            assert_eq!(request.message[..2], [0, 0], "RFC 8484: id 0");
            assert_eq!(request.message.len() % 128, 0, "padded");
            assert_eq!(request.addresses, ["192.0.2.53:443".parse().unwrap()]);
            match request.url.as_str() {
                "https://good.example/dns-query" => Ok(address_reply(&request.message, 60, 8)),
                "https://garbage.example/dns-query" => Ok(vec![1, 2, 3]),
                _ => Err(RemoteError::Status(500)),
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doh_upstreams_are_asked_by_the_way_given() {
    let ask_of = async |host: &str| {
        let policy: Policy = serde_json::from_value(serde_json::json!({"upstreams": {"servers": [
            {"address": format!("https://{host}/dns-query"), "bootstrap": ["192.0.2.53"]}]}}))
        .unwrap();
        let needs = UpstreamNeeds::new(None, Some(Arc::new(ScriptedExchange)));
        let options = ResolverOptions {
            upstream_needs: needs,
            default_policy: policy,
            ..ResolverOptions::default()
        };
        let store = Store::open("embedded:").await.unwrap();
        let resolver = Resolver::open(store, options).await.unwrap();
        let client = dns::QueryClient::local(dns::QueryProtocol::Udp);
        let reply = resolver.answer(&crate::support::packet("www.test"), client).await.unwrap();
        resolver.close().await;
        (reply[3] & 0xf, *reply.last().unwrap())
    };
    assert_eq!(ask_of("good.example").await, (0, 8));
    assert_eq!(ask_of("garbage.example").await.0, 2);
    assert_eq!(ask_of("broken.example").await.0, 2);
}
