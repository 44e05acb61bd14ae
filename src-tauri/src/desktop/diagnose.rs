//! The doctor for the window: examines this installation's network and machine, and keeps the report as a file.

use std::path::PathBuf;

use tauri::{AppHandle, Manager};

use crate::doctor::{self, Report};
use crate::engine::{Engine, Problem};

/// The file, in the user's downloads.
const FILE: &str = "kvasir-report.txt";

/// Looks at everything between this machine and the network that was joined.
pub(super) async fn examine(engine: &Engine) -> Report {
    doctor::examine(engine.examination().await).await
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
