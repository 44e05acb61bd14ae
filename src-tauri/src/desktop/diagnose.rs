//! The doctor for the window: examines this installation's network and machine, and keeps the report as a file.

use std::path::PathBuf;

use tauri::{AppHandle, Manager};

use super::shell::Shell;
use crate::doctor::{self, Report, WalletFound};
use crate::engine::{Problem, WalletState};
use crate::worker::network;

/// The file, in the user's downloads.
const FILE: &str = "kvasir-report.txt";

/// Looks at everything between this machine and the network that was joined, as the worker would go there.
pub(super) async fn examine(shell: &Shell) -> Report {
    let mut options = doctor::Options::clone(&shell.doctor);
    let status = shell.engine.status();
    // Expired or not: it is only looked at. What is wrong with its file is the engine's to say.
    if let Some(invite) = network::join(&shell.state_dir, None, &[], 0).ok().flatten() {
        options.outbound.network_ca_pem = invite.ca_pem;
        let chosen = status.settings.gateways;
        options.gateways = if chosen.is_empty() { invite.gateways } else { chosen };
        options.operators = vec![invite.operator];
        options.invite = network::code(&shell.state_dir);
    }
    options.wallet = match status.wallet.state {
        WalletState::Ready { .. } => shell.engine.wallet().await.map_or(WalletFound::None, WalletFound::Here),
        WalletState::Opening => WalletFound::None,
        WalletState::KeyMissing { problem, .. } | WalletState::Failed { problem } => {
            WalletFound::Trouble(problem.message)
        }
    };
    doctor::examine(options).await
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
