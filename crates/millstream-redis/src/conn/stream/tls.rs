//! TLS: which certificates are trusted, and the one that is shown.

use std::io;
use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::io::tcp::socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::config::TlsConfig;
use crate::error::CA_AS_SERVER;

/// Opens TLS sessions. The certificates are read once.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    /// The name that certificates must have, if it is not that of the host.
    server_name: Option<ServerName<'static>>,
}

impl Tls {
    pub(crate) fn new(config: &TlsConfig) -> Result<Self> {
        let (mut roots, mut given) = (RootCertStore::empty(), Vec::new());
        match &config.ca {
            Some(pem) => {
                given = certificates(pem, "ca")?;
                for certificate in &given {
                    roots.add(certificate.clone()).map_err(|error| invalid("ca", error))?;
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
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        let inner = inner.map_err(|error| invalid("ca", error))?;
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| invalid("provider", error))?.dangerous();
        let builder = builder.with_custom_certificate_verifier(Arc::new(Verifier { inner, given }));
        let mut client = match &config.client {
            Some((chain, key)) => {
                // Never with the parser's own text, which quotes the key.
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| invalid("client key", NO_KEY))?;
                let chain = certificates(chain, "client certificate")?;
                let client = builder.with_client_auth_cert(chain, key);
                client.map_err(|error| invalid("client certificate and key", error))?
            }
            None => builder.with_no_client_auth(),
        };
        // A server that caches no sessions and asks for certificates refuses sessions that are resumed.
        client.resumption = Resumption::disabled();
        let server_name = config.server_name.as_ref().map(|name| server_name(name)).transpose()?;
        Ok(Self { connector: TlsConnector::from(Arc::new(client)), server_name })
    }

    /// Checks that a host can be the name in a certificate.
    pub(crate) fn check(&self, host: &str) -> Result<()> {
        if self.server_name.is_some() { Ok(()) } else { server_name(host).map(drop) }
    }

    /// Opens a session over a connection to a server, whose certificate must have this name.
    pub(crate) async fn handshake(&self, stream: TcpStream, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => server_name(name).map_err(io::Error::other)?,
        };
        self.connector.connect(name, stream).await
    }
}

/// The usual checks, but a self-signed certificate may be that of the server if exactly this one is given as a CA: OpenSSL
/// takes it, and what its commands make by default is marked as a CA.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// Whether a certificate failed for nothing but its mark as a CA, and is one of those given. Its dates are looked at before
    /// that mark. Should these words change, such certificates are refused.
    fn is_given(&self, error: &rustls::Error, certificate: &CertificateDer<'_>) -> bool {
        let rustls::Error::InvalidCertificate(CertificateError::Other(cause)) = error else { return false };
        cause.to_string().contains(CA_AS_SERVER) && self.given.iter().any(|given| given == certificate)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(error) if self.is_given(&error, certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|error| invalid("name of the server", error))
}

const NO_PEM: &str = "it is not in PEM format, or is damaged";
const NO_KEY: &str =
    "it is not in PEM format, is damaged, or has a passphrase, without which it must be stored";

/// Returns the error of the session, if that is why a stream failed.
pub(super) fn reason(error: &io::Error) -> Option<io::Error> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(io::Error::new(io::ErrorKind::InvalidData, error.clone()))
}

/// Returns why a write failed. A server that refuses the client's certificate says so when the client takes the session for open: its
/// words have come and were not read, and the error of the write says only that it has hung up.
pub(super) fn why(stream: &mut TlsStream<TcpStream>, error: io::Error) -> io::Error {
    let (socket, session) = stream.get_mut();
    // Past the runtime, which may not know of them yet. A socket of the runtime never blocks.
    let socket = SockRef::from(&*socket);
    while session.read_tls(&mut &*socket).is_ok_and(|read| read > 0) {
        if let Err(error) = session.process_new_packets() {
            return io::Error::new(io::ErrorKind::InvalidData, error);
        }
    }
    error
}

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
