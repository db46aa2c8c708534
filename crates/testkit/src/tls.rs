//! Certificates for a server under test.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// An authority and a server's certificate for `localhost` and `127.0.0.1`, as files.
#[derive(Debug)]
pub struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    /// Makes new ones.
    pub fn make() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
        fs::write(folder.path().join("ca.pem"), authority.pem())?;
        fs::write(folder.path().join("server.pem"), certificate.pem())?;
        fs::write(folder.path().join("server.key"), key.serialize_pem())?;
        Ok(Self { folder })
    }

    /// The folder with `ca.pem`, `server.pem` and `server.key`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The authority's certificate.
    pub fn ca(&self) -> anyhow::Result<Vec<u8>> {
        Ok(fs::read(self.folder.path().join("ca.pem"))?)
    }
}
