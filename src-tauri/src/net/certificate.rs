//! A server's certificate that is read anew when its files change, so that a renewal needs no restart.
//!
//! The contents of the files are compared, not their times: renewals swap links, copy, or write in two steps. What cannot
//! be used – half a file, a key of another certificate – changes nothing: the certificate in use stays.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::der::{About, about};
use super::tls::{TlsError, certified_key, read, server_config_showing};

/// A certificate chain and its key, in PEM files.
#[derive(Debug)]
pub struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
    shown: Arc<Shown>,
    seen: Mutex<Seen>,
}

/// What a look at the files found.
#[derive(Debug)]
pub enum Look {
    /// Nothing that was not known.
    Unchanged,
    /// A new certificate, which is shown from now on.
    Taken,
    /// Files that cannot be used; said once for each state of them.
    Kept(TlsError),
}

/// What connections are shown.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

/// The newest state of the files that was judged: a digest of both, or why there was none.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Files(blake3::Hash),
    Unreadable(String),
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl CertificateFiles {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Files that cannot be read, hold something else, or do not belong together.
    pub fn open(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let texts = [read(cert)?, read(key)?];
        let shown = Arc::new(Shown(RwLock::new(Arc::new(parse(cert, key, &texts)?))));
        let seen = Mutex::new(Seen::Files(digest(&texts)));
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), shown, seen })
    }

    /// A server that shows what the newest usable files held.
    ///
    /// # Errors
    /// None that these fixed settings could meet; rustls checks them anyway.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        server_config_showing(Arc::clone(&self.shown) as Arc<dyn ResolvesServerCert>)
    }

    /// What the certificate that is shown now says of itself.
    #[must_use]
    pub fn about(&self) -> Option<About> {
        let shown = self.shown.0.read().unwrap_or_else(PoisonError::into_inner);
        about(shown.cert.first()?)
    }

    /// Looks at the files again; what new connections see may change. Reads files: not for an async task.
    pub fn look(&self) -> Look {
        let texts = read(&self.cert).and_then(|cert| Ok([cert, read(&self.key)?]));
        let now = match &texts {
            Ok(texts) => Seen::Files(digest(texts)),
            Err(error) => Seen::Unreadable(error.to_string()),
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return Look::Unchanged;
        }
        *seen = now;
        match texts.and_then(|texts| parse(&self.cert, &self.key, &texts)) {
            Ok(newer) => {
                *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(newer);
                Look::Taken
            }
            Err(error) => Look::Kept(error),
        }
    }
}

fn parse(cert: &Path, key: &Path, [cert_pem, key_pem]: &[Vec<u8>; 2]) -> Result<CertifiedKey, TlsError> {
    certified_key(cert_pem, &cert.display().to_string(), key_pem, &key.display().to_string())
}

fn digest(texts: &[Vec<u8>; 2]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::TrialCertificates;

    #[test]
    fn a_renewal_in_two_steps_is_taken_once_it_is_whole_and_trouble_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
        let [old, new] = [(); 2].map(|()| TrialCertificates::generate(&["localhost"]).unwrap());
        std::fs::write(&cert, &old.cert_pem).unwrap();
        std::fs::write(&key, &old.key_pem).unwrap();
        let files = CertificateFiles::open(&cert, &key).unwrap();
        let shown = || Arc::clone(&files.shown.0.read().unwrap());
        let first = shown();
        assert!(matches!(files.look(), Look::Unchanged));

        std::fs::write(&cert, &new.cert_pem).unwrap();
        let Look::Kept(error) = files.look() else { panic!("a key of another certificate") };
        assert!(error.to_string().contains("consistent"), "{error}");
        assert!(matches!(files.look(), Look::Unchanged), "told once");
        std::fs::write(&cert, &new.cert_pem[..new.cert_pem.len() / 2]).unwrap();
        assert!(matches!(files.look(), Look::Kept(TlsError::Pem { .. })));
        std::fs::remove_file(&cert).unwrap();
        assert!(matches!(files.look(), Look::Kept(TlsError::Read { .. })));
        assert!(matches!(files.look(), Look::Unchanged));
        assert!(Arc::ptr_eq(&first, &shown()), "the old one stays");

        std::fs::write(&cert, &new.cert_pem).unwrap();
        std::fs::write(&key, &new.key_pem).unwrap();
        assert!(matches!(files.look(), Look::Taken));
        assert_ne!(first.cert, shown().cert);
    }
}
