//! Asks where newer releases are announced, and fetches the one that was found.
//!
//! The connector is the one that leads to gateways, so that proxies and authorities of a company count here as well.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::announced::{Platform, Release};
use super::signature::{ReleaseKey, SignatureError};
use crate::net::dial::Connector;
use crate::net::download::{self, DownloadError};
use crate::wire::agent::{Version, VersionError};

/// Longest announcement: packages of a dozen platforms with their signatures and notes.
const ANNOUNCEMENT_BYTES_MAX: usize = 256 << 10;
/// Longest wait for it.
const ANNOUNCEMENT_WITHIN: Duration = Duration::from_secs(30);
/// Largest package; ours have 40 MB.
const PACKAGE_BYTES_MAX: usize = 512 << 20;
/// Longest download of one: 40 MB at 100 kbit/s.
const PACKAGE_WITHIN: Duration = Duration::from_secs(60 * 60);

/// Why a newer release is not known, or not to be had.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// This build's own settings.
    #[error("where releases come from: expected `pubkey` and `endpoints`, got {0}")]
    Settings(#[from] serde_json::Error),
    /// This build's own version.
    #[error("this program's version: {0}")]
    Version(#[from] VersionError),
    /// No answer.
    #[error("releases: {0}")]
    Download(#[from] DownloadError),
    /// An answer, but no announcement.
    #[error("expected an announcement of a release at {endpoint}, got {got}")]
    Announcement {
        /// Who was asked.
        endpoint: String,
        /// What came.
        got: String,
    },
    /// Nowhere to ask.
    #[error("expected an endpoint to ask for releases, got none")]
    NoEndpoint,
    /// The server announced a package that it then has not.
    #[error("expected a package at {0}, got nothing")]
    NoPackage(String),
    /// Somebody else's package, or an old one.
    #[error("version {version} was not taken: {source}")]
    Signature {
        /// What was announced.
        version: Version,
        /// Why.
        source: SignatureError,
    },
    /// This build's key.
    #[error("the releases' key: {0}")]
    Key(SignatureError),
}

impl ReleaseError {
    /// A stable name, which chooses a window's words.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Download(_) | Self::NoPackage(_) => "release_unreachable",
            Self::Signature { .. } => "release_untrusted",
            Self::Announcement { .. } => "release_announcement",
            Self::Settings(_) | Self::Version(_) | Self::NoEndpoint | Self::Key(_) => "release_settings",
        }
    }
}

/// What a build says of its releases.
#[derive(Deserialize)]
struct Settings {
    pubkey: String,
    endpoints: Vec<String>,
}

/// Where this program's releases come from.
pub struct Releases {
    key: Arc<ReleaseKey>,
    endpoints: Vec<String>,
    version: Version,
    platform: Platform,
    connector: Arc<Connector>,
}

impl Releases {
    /// Releases newer than `version`, as `settings` says: `{"pubkey", "endpoints"}`, what else is there is for others.
    ///
    /// # Errors
    /// Settings or a version that make no sense.
    pub fn new(
        settings: &Value,
        version: &str,
        platform: Platform,
        connector: Arc<Connector>,
    ) -> Result<Self, ReleaseError> {
        let Settings { pubkey, endpoints } = Settings::deserialize(settings)?;
        let key = Arc::new(ReleaseKey::read(&pubkey).map_err(ReleaseError::Key)?);
        if endpoints.is_empty() {
            return Err(ReleaseError::NoEndpoint);
        }
        Ok(Self { key, endpoints, version: version.parse()?, platform, connector })
    }

    /// The newer release, if there is one. Endpoints are asked in turn until one answers.
    ///
    /// # Errors
    /// Why the last one gave no answer.
    pub async fn look(&self) -> Result<Option<Release>, ReleaseError> {
        let mut failure = ReleaseError::NoEndpoint;
        for endpoint in &self.endpoints {
            match self.ask(&self.platform.fill(endpoint, self.version)).await {
                Ok(release) => return Ok(release.filter(|release| self.is_newer(release))),
                Err(error) => {
                    tracing::debug!(%error, "an endpoint of releases");
                    failure = error;
                }
            }
        }
        Err(failure)
    }

    /// The package of a release, as its key signed it: at most 512 MiB.
    ///
    /// # Errors
    /// It did not come, or is another.
    pub async fn fetch(&self, release: &Release) -> Result<Bytes, ReleaseError> {
        let Release { version, url, signature, .. } = release.clone();
        let package = download::get(&self.connector, &url, PACKAGE_BYTES_MAX, PACKAGE_WITHIN).await?;
        let package = package.ok_or(ReleaseError::NoPackage(url))?;
        let (key, bytes, platform) = (Arc::clone(&self.key), package.clone(), self.platform.clone());
        // Half a second for the largest one.
        let verdict = tokio::task::spawn_blocking(move || key.verify(&bytes, &signature, version, &platform)).await;
        match verdict {
            Ok(Ok(())) => Ok(package),
            Ok(Err(source)) => Err(ReleaseError::Signature { version, source }),
            Err(error) => {
                let source = SignatureError::Malformed(error.to_string());
                Err(ReleaseError::Signature { version, source })
            }
        }
    }

    async fn ask(&self, endpoint: &str) -> Result<Option<Release>, ReleaseError> {
        let said = download::get(&self.connector, endpoint, ANNOUNCEMENT_BYTES_MAX, ANNOUNCEMENT_WITHIN).await?;
        let Some(text) = said else { return Ok(None) };
        let release = Release::read(&text, &self.platform);
        release.map(Some).map_err(|got| ReleaseError::Announcement { endpoint: endpoint.to_owned(), got })
    }

    fn is_newer(&self, release: &Release) -> bool {
        if release.version < self.version {
            tracing::info!(announced = %release.version, "a release that is older than this program");
        }
        release.version > self.version
    }
}
