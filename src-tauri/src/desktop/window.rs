//! The window: made when asked for, destroyed when closed, so that a day in the tray costs no web process.

use tauri::{AppHandle, Manager, WebviewUrl, WebviewWindowBuilder};

use super::shell::Shell;
use crate::engine::Tray;

/// The only window; the capability names it.
const WINDOW: &str = "main";

/// Where in the window to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// What is owed and what goes on; a window that is open stays where it is.
    Home,
    /// The wallet and its backup.
    Wallet,
}

/// Shows the window, a new one if need be. On the main thread.
pub(super) fn show(app: &AppHandle, page: Page) -> Result<(), tauri::Error> {
    if let Some(window) = app.get_webview_window(WINDOW) {
        if page == Page::Wallet {
            window.eval("location.hash = '#wallet'")?;
        }
        window.unminimize()?;
        window.show()?;
        return window.set_focus();
    }
    let address = match page {
        Page::Home => "index.html",
        Page::Wallet => "index.html#wallet",
    };
    WebviewWindowBuilder::new(app, WINDOW, WebviewUrl::App(address.into()))
        .title("Kvasir")
        .inner_size(460.0, 760.0)
        .min_inner_size(320.0, 420.0)
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
            show_soon(&app, Page::Home);
        }
    }
}

/// As [`show`], from any thread.
pub(super) fn show_soon(app: &AppHandle, page: Page) {
    soon(app, move |app| show(app, page));
}

/// Destroys the window and what it costs, from any thread.
pub(super) fn destroy_soon(app: &AppHandle) {
    soon(app, |app| app.get_webview_window(WINDOW).map_or(Ok(()), |window| window.destroy()));
}

fn soon(app: &AppHandle, does: impl FnOnce(&AppHandle) -> Result<(), tauri::Error> + Send + 'static) {
    let handle = app.clone();
    let asked = app.run_on_main_thread(move || {
        if let Err(error) = does(&handle) {
            tracing::warn!(%error, "no window");
        }
    });
    if let Err(error) = asked {
        tracing::warn!(%error, "no window");
    }
}
