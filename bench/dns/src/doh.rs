//! The load over HTTPS: a few connections with many streams each, as browsers open them. dnsperf cannot
//! follow responses whose frames are interleaved, so it loses those of any server that answers streams
//! in parallel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

const CONNECTIONS: usize = 8;
const STREAMS: usize = 16;

/// Takes any certificate: both servers have one of their own, made a moment ago.
#[derive(Debug)]
struct AnyCertificate(rustls::crypto::CryptoProvider);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Posts queries for a while; returns how many were answered, and the seconds it took.
pub fn load(server: SocketAddr, queries: Arc<Vec<Vec<u8>>>, time: Duration) -> Result<(u64, f64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let provider = rustls::crypto::ring::default_provider();
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (answered, mut senders) = (Arc::new(AtomicU64::new(0)), Vec::new());
        for _ in 0..CONNECTIONS {
            let stream = tokio::net::TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            let tls = connector.connect(ServerName::try_from("localhost")?, stream).await?;
            let (sender, connection) = h2::client::handshake(tls).await?;
            tokio::spawn(connection);
            senders.push(sender.ready().await?);
        }
        let start = Instant::now();
        let mut tasks = Vec::new();
        for (number, sender) in senders.iter().enumerate() {
            for stream in 0..STREAMS {
                let (sender, queries) = (sender.clone(), Arc::clone(&queries));
                let answered = Arc::clone(&answered);
                tasks.push(tokio::spawn(async move {
                    let mut at = number * STREAMS + stream;
                    while start.elapsed() < time {
                        at = (at + 7) % queries.len();
                        ask(&sender, &queries[at]).await?;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    anyhow::Ok(())
                }));
            }
        }
        for task in tasks {
            task.await??;
        }
        Ok((answered.load(Ordering::Relaxed), start.elapsed().as_secs_f64()))
    })
}

async fn ask(sender: &h2::client::SendRequest<Bytes>, query: &[u8]) -> Result<()> {
    let request = http::Request::post("https://localhost/dns-query")
        .header("content-type", "application/dns-message")
        .header("accept", "application/dns-message")
        .body(())?;
    let mut sender = sender.clone().ready().await?;
    let (response, mut body) = sender.send_request(request, false)?;
    body.send_data(Bytes::copy_from_slice(query), true)?;
    let mut response = response.await?;
    ensure!(response.status() == 200, "status {}", response.status());
    let mut length = 0;
    while let Some(piece) = response.body_mut().data().await {
        let piece = piece.context("body")?;
        response.body_mut().flow_control().release_capacity(piece.len())?;
        length += piece.len();
    }
    ensure!(length >= 12, "a reply of {length} bytes");
    Ok(())
}
