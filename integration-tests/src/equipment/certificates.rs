//! Certificates for servers with TLS, signed by an authority of the tests.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority that signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, in PEM format.
#[derive(Debug)]
pub struct Signed {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority"))
    }

    /// Returns its certificate in PEM format.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate for a host, with changes.
    ///
    /// # Panics
    /// If `name` is not a host.
    #[must_use]
    pub fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed").pem();
        Signed { certificate, key: key.serialize_pem() }
    }
}

/// Signs a certificate for a host with its own key, and with changes. It is marked as that of a CA, as `openssl req -x509` does.
///
/// # Panics
/// If `name` is not a host.
#[must_use]
pub fn self_signed(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Signed {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("signed").pem();
    Signed { certificate, key: key.serialize_pem() }
}

/// Writes the files of a server with this certificate into a folder of their own, as
/// [`Builder::tls`](crate::server::Builder::tls) reads them.
///
/// # Panics
/// If they cannot be written.
#[must_use]
pub fn files(authority: &Authority, signed: &Signed) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, pem) in
        [("server.pem", &signed.certificate), ("server.key", &signed.key), ("ca.pem", &authority.pem())]
    {
        fs::write(folder.path().join(name), pem).expect("written");
    }
    folder
}

/// Returns [`files`] of a server at 127.0.0.1, and of its authority.
#[must_use]
pub fn folder() -> TempDir {
    let authority = Authority::new();
    files(&authority, &authority.sign("127.0.0.1", |_| {}))
}
