//! The doctor for the window: examines this installation's network and machine, and keeps the report as a file.

use std::path::PathBuf;

use tauri::{AppHandle, Manager};

use super::shell::Shell;
use crate::doctor::{self, Report};
use crate::engine::Problem;
#[cfg(feature = "gpu")]
use crate::kernel::gpu::GpuOptions;

/// The file, in the user's downloads.
const FILE: &str = "kvasir-report.txt";

/// Looks at everything between this machine and the network that was joined.
pub(super) async fn examine(shell: &Shell) -> Report {
    let options = doctor::Options {
        #[cfg(feature = "gpu")]
        gpu: GpuOptions::clone(&shell.gpu),
        ..shell.engine.examination().await
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
