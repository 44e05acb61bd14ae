//! TLS with rustls and ring: a client's side, what a server shows, and throw-away certificates for trials.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;

use super::tcp::bare;
use super::trust::{Telling, Untrusted};

/// WebSocket needs an HTTP/1.1 upgrade; HTTP/2 would need another protocol.
const ALPN: &[u8] = b"http/1.1";

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file without what it should hold.
    #[error("{origin}: expected {expected} in PEM: {reason}")]
    Pem {
        /// The file, or what stands for one.
        origin: String,
        /// What it should hold.
        expected: &'static str,
        /// Why not.
        reason: String,
    },
    /// A certificate or key that rustls does not take.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    /// A host that is no name.
    #[error("{host:?} is no host name: {source}")]
    Name {
        /// The host.
        host: String,
        /// Why.
        source: InvalidDnsNameError,
    },
    /// Nobody here trusts the certificate's issuer.
    #[error(transparent)]
    Untrusted(Untrusted),
    /// The handshake failed: nobody there speaks TLS, or the certificate is not that host's, or not valid now.
    #[error("TLS with {host}: {source}")]
    Handshake {
        /// The host.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// A throw-away certificate that could not be made.
    #[error("trial certificate: {0}")]
    Trial(#[from] rcgen::Error),
}

/// The only cryptography in use; given to every configuration, so that no process-wide default is needed.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Trusts only the certificates in `ca_pem`; [`super::trust::Trust`] is for who also trusts the public ones.
///
/// # Errors
/// A text without a certificate.
pub fn client_config_from_pem(ca_pem: &str) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(ca_pem.as_bytes(), "certificate authority")? {
        roots.add(cert)?;
    }
    client_config_with(Telling::over(roots)?)
}

/// A client that takes what `verifier` takes, by TLS 1.2 or 1.3.
pub(super) fn client_config_with(verifier: Arc<Telling>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// What a server shows: a certificate chain and its key, from PEM files.
///
/// # Errors
/// Files that cannot be read, hold something else, or do not belong together.
pub fn server_config(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let (cert_pem, key_pem) = (read(cert)?, read(key)?);
    server_config_with(&cert_pem, &cert.display().to_string(), &key_pem, &key.display().to_string())
}

/// The same from PEM texts.
///
/// # Errors
/// Texts that hold something else or do not belong together.
pub fn server_config_from_pem(cert_pem: &str, key_pem: &str) -> Result<Arc<ServerConfig>, TlsError> {
    server_config_with(cert_pem.as_bytes(), "certificate", key_pem.as_bytes(), "private key")
}

fn server_config_with(
    cert: &[u8],
    cert_origin: &str,
    key: &[u8],
    key_origin: &str,
) -> Result<Arc<ServerConfig>, TlsError> {
    let shown = certified_key(cert, cert_origin, key, key_origin)?;
    server_config_showing(Arc::new(SingleCertAndKey::from(shown)))
}

/// A server that shows what `certificates` gives it, anew for each connection.
pub(super) fn server_config_showing(certificates: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// A chain and its key from PEM texts, checked to belong together.
pub(super) fn certified_key(
    cert: &[u8],
    cert_origin: &str,
    key: &[u8],
    key_origin: &str,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(cert, cert_origin)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| TlsError::Pem {
        origin: key_origin.to_owned(),
        expected: "a private key",
        reason: e.to_string(),
    })?;
    Ok(CertifiedKey::from_der(chain, key, &provider())?)
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

pub(super) fn certificates(pem: &[u8], origin: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let fail = |reason: String| TlsError::Pem { origin: origin.to_owned(), expected: "certificates", reason };
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| fail(e.to_string()))?;
    if found.is_empty() { Err(fail("none found".into())) } else { Ok(found) }
}

/// Wraps a connected stream in TLS towards `host`. The caller bounds the time.
///
/// # Errors
/// [`TlsError::Name`], [`TlsError::Untrusted`] or [`TlsError::Handshake`].
pub async fn wrap_client<S: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ClientConfig>,
    host: &str,
    stream: S,
) -> Result<TlsStream<S>, TlsError> {
    let connected = tokio_rustls::TlsConnector::from(config).connect(server_name(host)?, stream).await;
    connected.map_err(|source| match untrusted(&source) {
        Some(untrusted) => TlsError::Untrusted(untrusted.clone()),
        None => TlsError::Handshake { host: host.to_owned(), source },
    })
}

/// A host as certificates name it.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let bare = bare(host).to_owned();
    ServerName::try_from(bare).map_err(|source| TlsError::Name { host: host.to_owned(), source })
}

/// What [`Telling`] saw, if that is why.
fn untrusted(error: &std::io::Error) -> Option<&Untrusted> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => other.0.downcast_ref(),
        _ => None,
    }
}

/// A certificate authority and one certificate by it, made on the spot for demos and tests.
pub struct TrialCertificates {
    /// What a client must trust.
    pub ca_pem: String,
    /// The server's chain.
    pub cert_pem: String,
    /// The server's key.
    pub key_pem: String,
}

impl TrialCertificates {
    /// For servers under `names` (DNS names or addresses).
    ///
    /// # Errors
    /// A name that cannot stand in a certificate.
    pub fn generate(names: &[&str]) -> Result<Self, TlsError> {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca.distinguished_name.push(DnType::CommonName, "Kvasir trial authority");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let cert = CertificateParams::new(names)?.signed_by(&key, &ca)?;
        Ok(Self { ca_pem: ca.pem(), cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }
}
