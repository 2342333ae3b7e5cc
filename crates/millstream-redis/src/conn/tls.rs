//! TLS: which certificates are trusted, and the one that is shown.

use std::io;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::TlsConfig;

/// Opens TLS sessions with one host. The certificates are read once.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    /// The name that the server's certificate must have.
    server_name: ServerName<'static>,
}

impl Tls {
    pub(crate) fn new(config: &TlsConfig, host: &str) -> Result<Self> {
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
        // The one that the application has installed, if any. Ours is not installed: the process is not ours.
        let provider = CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| invalid("provider", error))?.with_root_certificates(roots);
        let mut client = match &config.client {
            Some((chain, key)) => {
                // Never with the parser's own text, which quotes the key.
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| invalid("client key", NO_PEM))?;
                let chain = certificates(chain, "client certificate")?;
                let client = builder.with_client_auth_cert(chain, key);
                client.map_err(|error| invalid("client certificate and key", error))?
            }
            None => builder.with_no_client_auth(),
        };
        // A server that caches no sessions and asks for certificates refuses sessions that are resumed.
        client.resumption = Resumption::disabled();
        let server_name =
            ServerName::try_from(host.to_owned()).map_err(|error| invalid("host of the URL", error))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(client)), server_name })
    }

    /// Opens a session over a connection to the host.
    pub(crate) async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.server_name.clone(), stream).await
    }
}

const NO_PEM: &str = "it is not in PEM format, or is damaged";

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // Never with the parser's own text: the file may be one with a key.
    let all = all.map_err(|_| invalid(what, NO_PEM))?;
    if all.is_empty() {
        return Err(invalid(what, "there is no certificate in PEM format"));
    }
    Ok(all)
}

fn invalid(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("the {what} cannot be used for TLS: {error}"))
}
