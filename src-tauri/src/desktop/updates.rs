//! Looks for newer releases of the app, and installs one when its owner asks for it.
//!
//! Only builds that name a release key look (`tauri.release.conf.json`); what a distribution packs never does. **Promises:**
//! nothing is downloaded before somebody asks; what was downloaded is installed only if the release key signed it, as the
//! version that was announced; the worker drains before the new version starts.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tauri::{AppHandle, Config, Manager, Wry};
use tauri_plugin_updater::{Error, Update as Release, UpdaterExt};

use super::shell::Shell;
use crate::engine::{NewRelease, Problem};

/// From the start to the first look: whoever opens the app wants something else first.
const FIRST_LOOK: Duration = Duration::from_secs(60);
/// From one look to the next.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 60 * 60);
/// Longest answer of the releases' server.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The release that was found last.
#[derive(Default)]
struct Found(Mutex<Option<Release>>);

/// Whether this build looks for releases.
pub(super) fn are_wanted(config: &Config) -> bool {
    config.plugins.0.contains_key("updater")
}

/// What Tauri needs for it.
pub(super) fn plugin() -> tauri::plugin::TauriPlugin<Wry, tauri_plugin_updater::Config> {
    tauri_plugin_updater::Builder::new().build()
}

/// Looks again and again.
pub(super) async fn keep(app: AppHandle, shell: Shell) {
    app.manage(Found::default());
    let mut wait = FIRST_LOOK;
    loop {
        tokio::time::sleep(std::mem::replace(&mut wait, LOOK_EVERY)).await;
        match look(&app).await {
            Ok(Some(release)) => {
                shell.set_new_release(NewRelease::Found { version: release.version.clone() });
                *app.state::<Found>().0.lock().unwrap_or_else(PoisonError::into_inner) = Some(release);
            }
            Ok(None) => {}
            Err(error) => tracing::info!(%error, "not known whether there is a newer release"),
        }
    }
}

async fn look(app: &AppHandle) -> Result<Option<Release>, Error> {
    app.updater_builder().timeout(ANSWER_WITHIN).build()?.check().await
}

/// Downloads, checks and installs the release that was found, and starts it in place of this program.
pub(super) async fn install(app: &AppHandle, shell: &Shell) {
    let found = app.try_state::<Found>();
    let release = found.and_then(|found| found.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    let Some(release) = release else { return };
    let version = release.version.clone();
    shell.set_new_release(NewRelease::Fetching { version: version.clone() });
    match replace(shell, release.clone()).await {
        Ok(()) => {
            shell.engine.stop().await;
            app.restart();
        }
        Err(error) => {
            tracing::warn!(%error, version, "not installed");
            let problem = Problem { code: "update".to_owned(), message: error.to_string() };
            shell.set_new_release(NewRelease::Failed { version, problem });
            // It can be asked for once more.
            *app.state::<Found>().0.lock().unwrap_or_else(PoisonError::into_inner) = Some(release);
        }
    }
}

async fn replace(shell: &Shell, release: Release) -> Result<(), Error> {
    let package = release.download(|_, _| (), || ()).await?;
    // There the installer ends this program.
    if cfg!(windows) {
        shell.engine.stop().await;
    }
    // It may ask for a password, and waits as long as its owner does.
    let installed = tokio::task::spawn_blocking(move || release.install(package)).await;
    installed.map_err(|error| Error::Io(std::io::Error::other(error)))?
}
