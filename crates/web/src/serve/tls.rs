//! TLS with certificates that can be read again while the server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio_rustls::TlsAcceptor;

/// Certificate and key of the server.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: ArcSwap<rustls::ServerConfig>,
    chain: Mutex<Chain>,
}

type Chain = Vec<CertificateDer<'static>>;

/// The reason a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read as PEM: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Certificate and key do not fit.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

impl Tls {
    /// Reads certificate chain and key.
    pub fn load(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let (config, chain) = read(cert, key)?;
        let (config, chain) = (ArcSwap::new(config), Mutex::new(chain));
        Ok(Tls { cert: cert.to_owned(), key: key.to_owned(), config, chain })
    }

    /// Reads both again, and says whether the certificate is another one. On failure the old ones
    /// stay; connections under way keep theirs.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let (config, chain) = read(&self.cert, &self.key)?;
        let changed = *self.chain.lock() != chain;
        *self.chain.lock() = chain;
        self.config.store(config);
        Ok(changed)
    }

    /// The certificate and key as they are now, for a listener that is not this one.
    pub fn current(&self) -> Arc<rustls::ServerConfig> {
        self.config.load_full()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

fn wrong(path: &Path, why: impl ToString) -> TlsError {
    TlsError::File { path: path.to_owned(), why: why.to_string() }
}

/// The certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Chain, TlsError> {
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(path, error))?;
    match all.is_empty() {
        true => Err(wrong(path, "it contains no certificate")),
        false => Ok(all),
    }
}

/// Whose word counts about the other side of a connection: that of the certificates in a file, else
/// that of the system's, or the usual ones if the system has none.
pub fn client(file: Option<&Path>) -> Result<rustls::ClientConfig, TlsError> {
    let mut roots = rustls::RootCertStore::empty();
    let mut known = Vec::new();
    if let Some(path) = file {
        known = certificates(path)?;
        for certificate in &known {
            roots.add(certificate.clone()).map_err(|error| wrong(path, error))?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { known, usual }))
        .with_no_client_auth())
}

/// The usual checks, and one more way to pass: a certificate that is itself in the file, as one is
/// that a site made for itself.
#[derive(Debug)]
struct Verifier {
    known: Chain,
    usual: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.known.contains(certificate) {
            return Ok(ServerCertVerified::assertion());
        }
        self.usual.verify_server_cert(certificate, others, name, ocsp, now)
    }

    // That the other side holds the certificate's key is checked in any case.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

fn read(cert: &Path, key: &Path) -> Result<(Arc<rustls::ServerConfig>, Chain), TlsError> {
    let chain = certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain.clone(), secret)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), chain))
}

/// Converts the error of [`Tls::load`] for callers that return I/O errors.
impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        io::Error::other(error)
    }
}
