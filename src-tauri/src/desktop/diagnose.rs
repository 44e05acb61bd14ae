//! The doctor for the window: examines this installation's network and machine, and keeps the report as a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tauri::{AppHandle, Manager};
use tokio::task::spawn_blocking;

use super::KEYRING_SERVICE;
use crate::doctor::{self, Options, Report, WalletFound};
use crate::engine::{Problem, WalletState, WalletStatus};
use crate::net::dial::Outbound;
use crate::wallet::{KeyStore, OsKeyStore};
use crate::worker::network;

/// The file, in the user's downloads.
const FILE: &str = "kvasir-report.txt";

/// Looks at everything between this machine and the network that was joined.
pub(super) async fn examine(state_dir: &Path, wallet: WalletStatus) -> Report {
    // Expired or not: it is only looked at. What is wrong with its file is the engine's to say.
    let invite = network::join(state_dir, None, &[], 0).ok().flatten();
    let mut options = Options::new(state_dir.to_path_buf());
    if let Some(invite) = invite {
        options.outbound = Outbound { network_ca_pem: invite.ca_pem, ..Outbound::default() };
        (options.gateways, options.operators) = (invite.gateways, vec![invite.operator]);
        options.invite = network::code(state_dir);
    }
    options.wallet = found(wallet).await;
    doctor::examine(options).await
}

/// The wallet's key, read for the greeting only.
async fn found(wallet: WalletStatus) -> WalletFound {
    let address = match wallet.state {
        WalletState::Ready { address } => address,
        WalletState::Opening => return WalletFound::None,
        WalletState::KeyMissing { problem, .. } | WalletState::Failed { problem } => {
            return WalletFound::Trouble(problem.message);
        }
    };
    let load = spawn_blocking(move || {
        let address = address.parse().ok()?;
        OsKeyStore::new(KEYRING_SERVICE).load(&address).ok()
    });
    // A wallet in a file with a password is open in the engine, and its key stays there.
    load.await.ok().flatten().map_or(WalletFound::None, |wallet| WalletFound::Here(Arc::new(wallet)))
}

/// Writes a report, without what is private in it; gives its path.
pub(super) fn save(app: &AppHandle, report: &Report) -> Result<PathBuf, Problem> {
    let place = app.path();
    let dir = place.download_dir().ok().filter(|dir| dir.is_dir());
    let dir = dir.or_else(|| place.home_dir().ok()).unwrap_or_default();
    let path = dir.join(FILE);
    match doctor::save_report(report, &path, None, place.home_dir().ok().as_deref()) {
        Ok(()) => Ok(path),
        Err(error) => Err(Problem {
            code: "report_file".to_owned(),
            message: format!("expected to write {}, got: {error}", path.display()),
        }),
    }
}
