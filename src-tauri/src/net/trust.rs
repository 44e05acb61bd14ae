//! Whom a client trusts, the same for HTTPS and for WebSockets, and what it says of a certificate that it saw.
//!
//! Roots are the bundled ones, the operating system's, those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name, extra files,
//! and the authority in a network's join code. **Promises:** an issuer that nobody here trusts is named; a certificate
//! that only this machine's own roots vouch for – as behind a proxy that inspects traffic – is noted once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, OtherError, ProtocolVersion,
    RootCertStore, SignatureScheme,
};
use serde::Serialize;

use super::der::{self, About};
use super::tls::{self, TlsError};

/// Variables that name roots; where they are set, the system's own are read as well.
const ENV_ROOTS: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
/// Where the systems that honour these variables keep their roots.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Who vouches for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Voucher {
    /// A public authority, bundled with this program.
    Public,
    /// The authority that the network's join code names.
    Network,
    /// One in a file that was named with `--ca`.
    Named,
    /// One that only this machine trusts: its system, `SSL_CERT_FILE` or `SSL_CERT_DIR`.
    Machine,
}

/// A server's certificate as it was seen and taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Who issued it.
    pub issuer: String,
    /// When it ends, seconds since 1970.
    pub ends_unix_s: i64,
    /// Who vouches for it.
    pub voucher: Voucher,
    /// `TLS 1.3` or `TLS 1.2`.
    pub version: &'static str,
}

/// Why a certificate is not taken, with what there was to see of it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the certificate of {host} was issued by {issuer}, which is not trusted here: if your company or network issued \
     it, name its authority with --ca or SSL_CERT_FILE; else somebody is in between"
)]
pub struct Untrusted {
    /// Whose.
    pub host: String,
    /// By whom.
    pub issuer: String,
}

/// Roots and what they were given for.
#[derive(Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    /// Who could vouch, the best first; none for trust in a single authority.
    vouchers: Vec<(Voucher, Arc<WebPkiServerVerifier>)>,
    inspector: OnceLock<String>,
}

impl Trust {
    /// Trusts the usual roots, the PEM files in `extra_ca`, and the network's authority in `network_pem`.
    ///
    /// # Errors
    /// A file of `extra_ca` that cannot be read or holds no certificate; the same of the text.
    pub fn new(extra_ca: &[PathBuf], network_pem: Option<&str>) -> Result<Self, TlsError> {
        let public = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let mut all = public.clone();
        let mut vouchers = vec![(Voucher::Public, verifier(public)?)];
        all.add_parsable_certificates(system_roots());
        let mut named = RootCertStore::empty();
        for path in extra_ca {
            add(&mut named, &tls::read(path)?, &path.display().to_string())?;
        }
        let mut network = RootCertStore::empty();
        if let Some(pem) = network_pem {
            add(&mut network, pem.as_bytes(), "the network's certificate authority")?;
        }
        for (voucher, roots) in [(Voucher::Network, network), (Voucher::Named, named)] {
            all.roots.extend(roots.roots.iter().cloned());
            if !roots.is_empty() {
                vouchers.push((voucher, verifier(roots)?));
            }
        }
        let config = tls::client_config_with(Arc::new(Telling(verifier(all)?)))?;
        Ok(Self { config, vouchers, inspector: OnceLock::new() })
    }

    /// Trusts only the certificates in `ca_pem`.
    ///
    /// # Errors
    /// A text without a certificate.
    pub fn only(ca_pem: &str) -> Result<Self, TlsError> {
        Ok(tls::client_config_from_pem(ca_pem)?.into())
    }

    /// For handshakes.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Who seems to read along: the issuer of a certificate that only this machine's own roots vouched for.
    #[must_use]
    pub fn inspector(&self) -> Option<&str> {
        self.inspector.get().map(String::as_str)
    }

    /// What there is to say of a connection's certificate, which was taken.
    pub(super) fn see(&self, host: &str, name: &ServerName<'_>, connection: &ClientConnection) -> Option<Seen> {
        let (first, rest) = connection.peer_certificates()?.split_first()?;
        let About { issuer, ends_unix_s } = der::about(first)?;
        let vouches = |verifier: &WebPkiServerVerifier| {
            verifier.verify_server_cert(first, rest, name, &[], UnixTime::now()).is_ok()
        };
        let found = self.vouchers.iter().find(|(_, verifier)| vouches(verifier)).map(|(voucher, _)| *voucher);
        // Who trusts a single authority was told of it by the network.
        let fallback = if self.vouchers.is_empty() { Voucher::Network } else { Voucher::Machine };
        let voucher = found.unwrap_or(fallback);
        if matches!(voucher, Voucher::Named | Voucher::Machine) && self.inspector.set(issuer.clone()).is_ok() {
            const WHO: &str = "no public authority vouches for this certificate, only one that this machine was told to \
                               trust: where that is a proxy that inspects traffic, it sees what passes";
            // Whoever named the authority for Kvasir knows it; what somebody gave the whole machine is news.
            match voucher {
                Voucher::Machine => tracing::warn!(host, issuer, "{WHO}"),
                _ => tracing::info!(host, issuer, "{WHO}"),
            }
        }
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => "TLS 1.3",
        };
        Some(Seen { issuer, ends_unix_s, voucher, version })
    }
}

impl From<Arc<ClientConfig>> for Trust {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self { config, vouchers: Vec::new(), inspector: OnceLock::new() }
    }
}

fn add(roots: &mut RootCertStore, pem: &[u8], origin: &str) -> Result<(), TlsError> {
    for cert in tls::certificates(pem, origin)? {
        roots.add(cert)?;
    }
    Ok(())
}

/// The system's roots, and those that the environment names.
fn system_roots() -> Vec<CertificateDer<'static>> {
    let mut found = rustls_native_certs::load_native_certs();
    if ENV_ROOTS.iter().any(|name| std::env::var_os(name).is_some())
        && let Some(bundle) = SYSTEM_BUNDLES.iter().map(Path::new).find(|path| path.is_file())
    {
        let system = rustls_native_certs::load_certs_from_paths(Some(bundle), None);
        found.certs.extend(system.certs);
        found.errors.extend(system.errors);
    }
    for error in &found.errors {
        tracing::debug!(%error, "system root certificate not read");
    }
    found.certs
}

fn verifier(roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), tls::provider()).build();
    built.map_err(|error| TlsError::Rustls(Error::General(error.to_string())))
}

/// Verifies as usual, and tells what it saw when it finds nobody who vouches.
pub(super) struct Telling(Arc<WebPkiServerVerifier>);

impl Telling {
    pub(super) fn over(roots: RootCertStore) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self(verifier(roots)?)))
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Telling")
    }
}

impl ServerCertVerifier for Telling {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify_server_cert(cert, intermediates, name, ocsp, now).map_err(|error| match error {
            // A bad signature is that of another authority of the same name.
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                // What the last one names is what would have to be trusted.
                let last = der::about(intermediates.last().unwrap_or(cert));
                let issuer = last.map_or_else(|| "somebody unreadable".to_owned(), |about| about.issuer);
                let untrusted = Untrusted { host: name.to_str().into_owned(), issuer };
                CertificateError::Other(OtherError(Arc::new(untrusted))).into()
            }
            other => other,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
