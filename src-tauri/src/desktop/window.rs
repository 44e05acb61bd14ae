//! The window: made when asked for, destroyed when closed, so that a day in the tray costs no web process.

use tauri::{AppHandle, Manager, WebviewUrl, WebviewWindowBuilder};

use super::shell::Shell;
use crate::engine::Tray;

/// The only window; the capability names it.
const WINDOW: &str = "main";

/// Shows the window, a new one if need be. On the main thread.
pub(super) fn show(app: &AppHandle) -> Result<(), tauri::Error> {
    if let Some(window) = app.get_webview_window(WINDOW) {
        window.unminimize()?;
        window.show()?;
        return window.set_focus();
    }
    WebviewWindowBuilder::new(app, WINDOW, WebviewUrl::default())
        .title("Kvasir")
        .inner_size(440.0, 720.0)
        .min_inner_size(340.0, 480.0)
        // The page loads from the program; it goes nowhere else.
        .on_navigation(|url| {
            // Where there are no schemes of one's own, the program is a host that no name server knows.
            url.scheme() == "tauri" || (cfg!(windows) && url.host_str() == Some("tauri.localhost"))
        })
        .build()?;
    Ok(())
}

/// Shows the window whenever no tray shows the icon, so that there is always a way to the program.
pub(super) async fn keep_reachable(app: AppHandle, shell: Shell) {
    let mut views = shell.views();
    let mut tray = Tray::Shown;
    while views.changed().await.is_ok() {
        let before = std::mem::replace(&mut tray, views.borrow_and_update().tray);
        if tray != Tray::Shown && before == Tray::Shown {
            show_soon(&app);
        }
    }
}

/// As [`show`], from any thread.
pub(super) fn show_soon(app: &AppHandle) {
    let handle = app.clone();
    let asked = app.run_on_main_thread(move || {
        if let Err(error) = show(&handle) {
            tracing::warn!(%error, "no window");
        }
    });
    if let Err(error) = asked {
        tracing::warn!(%error, "no window");
    }
}
