//! Looks for newer releases of the app, and installs one when its owner asks for it.
//!
//! Only builds that name a release key look (`tauri.release.conf.json`); what a distribution packs never does. The engine
//! finds, fetches and verifies; Tauri's updater verifies once more and replaces the program. **Promises:** nothing is
//! downloaded before somebody asks; what fails changes nothing, and says why; a package that the system would not install
//! is kept for its owner; the worker drains before the new version starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tauri::utils::config::BundleType;
use tauri::utils::platform::bundle_type;
use tauri::{AppHandle, Config, Manager, Wry};
use tauri_plugin_updater::{Error, UpdaterExt};
use tokio::sync::Mutex;

use super::shell::Shell;
use crate::engine::release::{Platform, Release, ReleaseError, Releases};
use crate::engine::{NewRelease, Problem};
use crate::net::dial::Connector;
use crate::net::tls::TlsError;

/// The settings of releases among those of Tauri's plugins.
const SETTINGS: &str = "updater";
/// From the start to the first look: whoever opens the app wants something else first.
const FIRST_LOOK: Duration = Duration::from_secs(60);
/// From one look to the next.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 60 * 60);
/// The same after one without an answer.
const LOOK_AGAIN: Duration = Duration::from_secs(60 * 60);
/// Where a package is kept that the system did not install, below the app's directory.
const KEPT: &str = "release";

/// Where releases come from, and the one that was found last; whoever looks or installs holds it.
struct Updates {
    releases: Releases,
    found: Mutex<Option<Release>>,
}

/// Why the program is still the old one.
#[derive(Debug, thiserror::Error)]
enum InstallError {
    /// There is no package to be trusted.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// Nobody packed this program.
    #[error("expected a program that came in a package, got one that was built here: build version {0} as well")]
    NotPacked(String),
    /// The system did not install it.
    #[error("expected the system to install the package, got: {0}")]
    System(#[from] Error),
    /// The same, but it can be done by hand.
    #[error(
        "expected pkexec or sudo to install the package, got: {source}; it is what was signed, and was kept: {how}"
    )]
    Kept {
        /// What the system said.
        source: Error,
        /// A command.
        how: String,
    },
}

impl InstallError {
    fn problem(&self) -> Problem {
        let code = match self {
            Self::Release(error) => error.code(),
            Self::NotPacked(_) | Self::System(_) | Self::Kept { .. } => "release_install",
        };
        Problem { code: code.to_owned(), message: self.to_string() }
    }
}

/// Whether this build looks for releases.
pub(super) fn are_wanted(config: &Config) -> bool {
    config.plugins.0.contains_key(SETTINGS)
}

/// What Tauri needs for it.
pub(super) fn plugin() -> tauri::plugin::TauriPlugin<Wry, tauri_plugin_updater::Config> {
    tauri_plugin_updater::Builder::new().build()
}

/// Looks again and again, in a build that does.
pub(super) fn start(app: &AppHandle, shell: &Shell, connector: Result<Connector, TlsError>) {
    // The version that was kept for its owner is this one by now, or will be fetched again.
    let _ = std::fs::remove_dir_all(shell.state_dir.join(KEPT));
    let Some(settings) = app.config().plugins.0.get(SETTINGS) else { return };
    let connector = match connector {
        Ok(connector) => Arc::new(connector),
        Err(error) => return tracing::error!(%error, "no releases are looked for"),
    };
    let version = app.package_info().version.to_string();
    match Releases::new(settings, &version, Platform::here(bundle()), connector) {
        Ok(releases) => app.manage(Updates { releases, found: Mutex::default() }),
        Err(error) => return tracing::error!(%error, "no releases are looked for"),
    };
    shell.set_new_release(NewRelease::NotKnown);
    tauri::async_runtime::spawn(keep(app.clone(), shell.clone()));
}

/// How this program was packed.
fn bundle() -> Option<&'static str> {
    Some(match bundle_type()? {
        BundleType::Deb => "deb",
        BundleType::Rpm => "rpm",
        BundleType::AppImage => "appimage",
        BundleType::Msi => "msi",
        BundleType::Nsis => "nsis",
        BundleType::App | BundleType::Dmg => "app",
    })
}

async fn keep(app: AppHandle, shell: Shell) {
    let mut wait = FIRST_LOOK;
    loop {
        tokio::time::sleep(wait).await;
        let updates = app.state::<Updates>();
        // Whoever holds it has found one, or is about to.
        let Ok(mut found) = updates.found.try_lock() else { continue };
        wait = match updates.releases.look().await {
            Ok(release) => {
                show(&shell, &mut found, release, NewRelease::NotKnown);
                LOOK_EVERY
            }
            Err(error) => {
                tracing::warn!(%error, "not known whether there is a newer release");
                LOOK_AGAIN
            }
        };
    }
}

/// Looks at once, since somebody asked.
pub(super) async fn look(app: &AppHandle, shell: &Shell) {
    let Some(updates) = app.try_state::<Updates>().filter(|_| !is_fetching(shell)) else { return };
    shell.set_new_release(NewRelease::Asking);
    // Whoever looks in the background says what came of it first.
    let mut found = updates.found.lock().await;
    shell.set_new_release(NewRelease::Asking);
    match updates.releases.look().await {
        Ok(release) => show(shell, &mut found, release, NewRelease::Newest),
        Err(error) => {
            tracing::warn!(%error, "not known whether there is a newer release");
            let problem = Problem { code: error.code().to_owned(), message: error.to_string() };
            shell.set_new_release(NewRelease::Unknown { problem });
        }
    }
}

/// Whether a release is being installed: one click is enough.
fn is_fetching(shell: &Shell) -> bool {
    matches!(shell.views().borrow().new_release, NewRelease::Fetching { .. })
}

/// Shows a release, or `none`.
fn show(shell: &Shell, found: &mut Option<Release>, release: Option<Release>, none: NewRelease) {
    let version = release.as_ref().map(|release| release.version.to_string());
    *found = release;
    shell.set_new_release(version.map_or(none, |version| NewRelease::Found { version }));
}

/// Downloads, checks and installs the release that was found, and starts it in place of this program.
pub(super) async fn install(app: &AppHandle, shell: &Shell) {
    let Some(updates) = app.try_state::<Updates>().filter(|_| !is_fetching(shell)) else { return };
    let shown = match &shell.views().borrow().new_release {
        NewRelease::Found { version } | NewRelease::Failed { version, .. } => Some(version.clone()),
        _ => None,
    };
    // At once, also while a look in the background must be waited for.
    if let Some(version) = shown {
        shell.set_new_release(NewRelease::Fetching { version });
    }
    let found = updates.found.lock().await;
    let Some(release) = found.as_ref() else { return };
    let version = release.version.to_string();
    shell.set_new_release(NewRelease::Fetching { version: version.clone() });
    match replace(app, shell, &updates.releases, release).await {
        Ok(()) => {
            shell.engine.stop().await;
            app.request_restart();
        }
        Err(error) => {
            tracing::warn!(%error, version, "not installed");
            // It can be asked for once more.
            shell.set_new_release(NewRelease::Failed { version, problem: error.problem() });
        }
    }
}

async fn replace(app: &AppHandle, shell: &Shell, releases: &Releases, release: &Release) -> Result<(), InstallError> {
    let Some(kind) = bundle() else { return Err(InstallError::NotPacked(release.version.to_string())) };
    let package = releases.fetch(release).await?;
    // There the installer ends this program.
    if cfg!(windows) {
        shell.engine.stop().await;
    }
    let update = app.updater_builder().build()?.restore_update(release.announced.clone())?;
    let update = update.ok_or(Error::ReleaseNotFound)?;
    let bytes = package.clone();
    // It may ask for a password, and waits as long as its owner does.
    let installed = tokio::task::spawn_blocking(move || update.install(bytes)).await;
    let failed = match installed {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(error) => Error::Io(std::io::Error::other(error)),
    };
    Err(match kept(&shell.state_dir, kind, release, &package) {
        Some(how) => InstallError::Kept { source: failed, how },
        None => InstallError::System(failed),
    })
}

/// Keeps a package of the system's own kind; the answer is the command that installs it.
fn kept(state: &Path, kind: &str, release: &Release, package: &Bytes) -> Option<String> {
    let tool = match kind {
        "deb" => "apt install",
        "rpm" => "rpm --upgrade",
        _ => return None,
    };
    let keep = || -> std::io::Result<PathBuf> {
        let dir = state.join(KEPT);
        std::fs::create_dir_all(&dir)?;
        let path = dir.join(format!("kvasir-{}.{kind}", release.version));
        std::fs::write(&path, package)?;
        Ok(path)
    };
    match keep() {
        Ok(path) => Some(format!("sudo {tool} '{}'", path.display())),
        Err(error) => {
            tracing::warn!(%error, "the package is not kept");
            None
        }
    }
}
