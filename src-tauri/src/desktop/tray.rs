//! The tray icon and its menu: on many desktops the whole app. Every action is in the menu, because Linux tells a
//! program nothing of clicks on its icon.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tauri::image::Image;
use tauri::menu::{CheckMenuItem, Menu, MenuEvent, MenuItem, PredefinedMenuItem, Submenu};
use tauri::tray::{TrayIcon, TrayIconBuilder};
use tauri::{AppHandle, Manager, Wry};

use super::face::{Action, Face};
use super::shell::{self, Shell};
use super::updates;
use super::window::{self, Page};
use crate::engine::{Engine, EngineError, NewRelease, PauseKind, State};

const ACTION: &str = "contribute";
const HOUR: &str = "hour";
const UNTIL_RESUMED: &str = "until_resumed";
const BACKUP: &str = "backup";
const DOWNLOAD: &str = "download";
const RELEASE: &str = "release";
const OPEN: &str = "open";
const LOGIN: &str = "login";
const QUIT: &str = "quit";
/// The place of the lines that are not always there, behind pending KVR and device.
const ASKING_AT: usize = 2;

/// The icon with the parts that change. Its methods are for the main thread.
#[derive(Clone)]
pub(super) struct Icon {
    tray: TrayIcon,
    menu: Menu<Wry>,
    pending: MenuItem<Wry>,
    device: MenuItem<Wry>,
    backup: MenuItem<Wry>,
    download: MenuItem<Wry>,
    release: MenuItem<Wry>,
    action: MenuItem<Wry>,
    pause: Submenu<Wry>,
    hour: MenuItem<Wry>,
    until_resumed: MenuItem<Wry>,
    open: MenuItem<Wry>,
    login: CheckMenuItem<Wry>,
    quit: MenuItem<Wry>,
}

impl Icon {
    /// `None` where the system has no library for icons.
    pub fn build(app: &AppHandle, face: &Face) -> Option<Self> {
        // The library is loaded when first used, and its absence is a panic.
        match catch_unwind(AssertUnwindSafe(|| Self::try_build(app, face))) {
            Ok(Ok(icon)) => Some(icon),
            Ok(Err(error)) => {
                tracing::warn!(%error, "no tray icon");
                None
            }
            Err(_) => {
                tracing::warn!("no tray icon: libayatana-appindicator3 is not installed");
                None
            }
        }
    }

    fn try_build(app: &AppHandle, face: &Face) -> Result<Self, tauri::Error> {
        let line = |id: &str, text: &str, enabled| MenuItem::with_id(app, id, text, enabled, None::<&str>);
        let pending = line("pending", &face.pending, false)?;
        let device = line("device", &face.device, false)?;
        let backup = line(BACKUP, "", true)?;
        let download = line(DOWNLOAD, "", true)?;
        let release = line(RELEASE, "", true)?;
        let action = line(ACTION, &face.action, face.can_act)?;
        let hour = line(HOUR, &face.hour, true)?;
        let until_resumed = line(UNTIL_RESUMED, &face.until_resumed, true)?;
        let pause = Submenu::with_items(app, &face.pause, face.can_pause, &[&hour, &until_resumed])?;
        let open = line(OPEN, &face.open, true)?;
        let is_on = face.starts_at_login == Some(true);
        let login = CheckMenuItem::with_id(app, LOGIN, &face.login, true, is_on, None::<&str>)?;
        let quit = line(QUIT, &face.quit, true)?;
        let gap = || PredefinedMenuItem::separator(app);
        let menu = Menu::with_items(app, &[&pending, &device, &gap()?, &action, &pause, &gap()?, &open])?;
        if face.starts_at_login.is_some() {
            menu.append(&login)?;
        }
        menu.append_items(&[&gap()?, &quit])?;
        let tray = TrayIconBuilder::with_id("main")
            .icon(picture(face.state)?)
            .tooltip(&face.tooltip)
            .menu(&menu)
            .on_menu_event({
                let login = login.clone();
                move |app, event| chosen(app, &event, &login)
            })
            .build(app)?;
        Ok(Self {
            tray,
            menu,
            pending,
            device,
            backup,
            download,
            release,
            action,
            pause,
            hour,
            until_resumed,
            open,
            login,
            quit,
        })
    }

    /// Changes what is another than `before`: menus that are open stay so.
    fn show(&self, before: &Face, face: &Face) -> Result<(), tauri::Error> {
        if before.state != face.state {
            self.tray.set_icon(Some(picture(face.state)?))?;
        }
        if before.tooltip != face.tooltip {
            self.tray.set_tooltip(Some(&face.tooltip))?;
        }
        for (item, old, new) in [
            (&self.pending, &before.pending, &face.pending),
            (&self.device, &before.device, &face.device),
            (&self.action, &before.action, &face.action),
            (&self.hour, &before.hour, &face.hour),
            (&self.until_resumed, &before.until_resumed, &face.until_resumed),
            (&self.open, &before.open, &face.open),
            (&self.quit, &before.quit, &face.quit),
        ] {
            if old != new {
                item.set_text(new)?;
            }
        }
        if before.pause != face.pause {
            self.pause.set_text(&face.pause)?;
        }
        if before.login != face.login {
            self.login.set_text(&face.login)?;
        }
        if before.can_act != face.can_act {
            self.action.set_enabled(face.can_act)?;
        }
        if before.can_pause != face.can_pause {
            self.pause.set_enabled(face.can_pause)?;
        }
        // A click has changed the mark already; whether it is true is known here.
        self.login.set_checked(face.starts_at_login == Some(true))?;
        self.ask(&self.backup, before.backup.as_deref(), face.backup.as_deref())?;
        self.ask(&self.download, before.download.as_deref(), face.download.as_deref())?;
        self.ask(&self.release, before.release.as_deref(), face.release.as_deref())
    }

    /// Shows or hides a line that asks for something.
    fn ask(&self, line: &MenuItem<Wry>, before: Option<&str>, now: Option<&str>) -> Result<(), tauri::Error> {
        if let Some(text) = now {
            line.set_text(text)?;
        }
        match (before, now) {
            (None, Some(_)) => self.menu.insert(line, ASKING_AT),
            (Some(_), None) => self.menu.remove(line),
            _ => Ok(()),
        }
    }
}

fn picture(state: State) -> Result<Image<'static>, tauri::Error> {
    Image::from_bytes(match state {
        State::Idle => include_bytes!("../../../icons/tray-idle.png"),
        State::Working => include_bytes!("../../../icons/tray-working.png"),
        State::Paused => include_bytes!("../../../icons/tray-paused.png"),
        State::Error => include_bytes!("../../../icons/tray-error.png"),
        State::Offline => include_bytes!("../../../icons/tray-offline.png"),
    })
}

fn chosen(app: &AppHandle, event: &MenuEvent, login: &CheckMenuItem<Wry>) {
    let app = app.clone();
    match event.id().as_ref() {
        id @ (ACTION | HOUR | UNTIL_RESUMED) => {
            let id = id.to_owned();
            tauri::async_runtime::spawn(async move {
                let engine = app.state::<Shell>().engine.clone();
                // What is missing is said in the window.
                if let Err(error) = act(&engine, &id).await {
                    tracing::info!(%error, "refused");
                    window::show_soon(&app, Page::Home);
                }
            });
        }
        BACKUP => window::show_soon(&app, Page::Wallet),
        RELEASE => drop(tauri::async_runtime::spawn(async move {
            let shell = app.state::<Shell>().inner().clone();
            updates::install(&app, &shell).await;
            // Why it failed, and perhaps how to go on, is said in the window.
            if matches!(shell.views().borrow().new_release, NewRelease::Failed { .. }) {
                window::show_soon(&app, Page::Home);
            }
        })),
        OPEN | DOWNLOAD => window::show_soon(&app, Page::Home),
        LOGIN => {
            let shell = app.state::<Shell>();
            let is_on = shell.starts_at_login() == Some(true);
            if let Err(problem) = shell.start_at_login(&app, !is_on) {
                tracing::warn!(problem.message, "not changed");
                window::show_soon(&app, Page::Home);
            }
            // The click itself has changed the mark, whatever came of it.
            if let Err(error) = login.set_checked(shell.starts_at_login() == Some(true)) {
                tracing::warn!(%error, "the mark is not up to date");
            }
        }
        QUIT => drop(tauri::async_runtime::spawn(async move { shell::quit(&app).await })),
        _ => {}
    }
}

async fn act(engine: &Engine, id: &str) -> Result<(), EngineError> {
    match (id, Action::of(&engine.status())) {
        (HOUR, _) => engine.pause(PauseKind::Hour).await,
        (UNTIL_RESUMED, _) => engine.pause(PauseKind::UntilResumed).await,
        (_, Action::Resume) => engine.resume().await,
        (_, action) => engine.contribute(action == Action::Contribute).await,
    }
}

/// Keeps the icon as the view is; from one task, because each change waits for the main thread.
pub(super) async fn keep(app: AppHandle, shell: Shell, icon: Option<(Icon, Face)>) {
    let Some((icon, mut before)) = icon else { return };
    let mut views = shell.views();
    while views.changed().await.is_ok() {
        let face = Face::of(&views.borrow_and_update());
        if before == face {
            continue;
        }
        let (icon, old, new) = (icon.clone(), std::mem::replace(&mut before, face.clone()), face);
        let shown = app.run_on_main_thread(move || {
            if let Err(error) = icon.show(&old, &new) {
                tracing::warn!(%error, "the tray icon is not up to date");
            }
        });
        if shown.is_err() {
            return;
        }
    }
}
