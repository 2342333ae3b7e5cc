//! TLS: which certificates are trusted, and the one that is shown.

use std::io;
use std::sync::{Arc, Once};

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{ClientTlsConfig, TlsCertificates};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::TlsConfig;

/// Opens TLS sessions. The certificates are read once.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    pub(crate) fn new(config: &TlsConfig) -> Result<Self> {
        install_provider();
        let mut roots = RootCertStore::empty();
        match &config.ca {
            Some(pem) => {
                for certificate in certificates(pem, "ca")? {
                    roots.add(certificate).map_err(|error| invalid("ca", error))?;
                }
            }
            None => {
                let system = rustls_native_certs::load_native_certs();
                let (added, ignored) = roots.add_parsable_certificates(system.certs);
                tracing::debug!(added, ignored, errors = ?system.errors, "root certificates of the system");
                if added == 0 {
                    let why = "the system has no root certificates: name a CA";
                    return Err(Error::new(ErrorKind::InvalidConfig, why));
                }
            }
        }
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let client = match &config.client {
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| invalid("client key", error))?;
                let chain = certificates(chain, "client certificate")?;
                let client = builder.with_client_auth_cert(chain, key);
                client.map_err(|error| invalid("client certificate and key", error))?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Self(TlsConnector::from(Arc::new(client))))
    }

    /// Opens a session over a connection to this host.
    pub(crate) async fn handshake(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

/// Returns the same certificates for the client library.
pub(crate) fn for_client(config: &TlsConfig) -> TlsCertificates {
    let client_tls = config.client.clone();
    let client_tls = client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    TlsCertificates { client_tls, root_cert: config.ca.clone() }
}

/// Makes `ring` the provider of the process, unless it has one. The client library uses that of the process, and panics
/// without one when several are compiled in.
fn install_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The application may have installed its own, which is as good.
        let _ = ring::default_provider().install_default();
    });
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| invalid(what, error))?;
    if all.is_empty() {
        return Err(invalid(what, "no certificate in PEM format"));
    }
    Ok(all)
}

/// The error never quotes what was read, which may be a key.
fn invalid(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("the {what} of the TLS settings cannot be used: {error}"))
}
