//! The tray icon and its menu: on many desktops the whole app. Every action is in the menu, because Linux tells a
//! program nothing of clicks on its icon.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tauri::image::Image;
use tauri::menu::{Menu, MenuEvent, MenuItem, PredefinedMenuItem};
use tauri::tray::{TrayIcon, TrayIconBuilder};
use tauri::{AppHandle, Manager, Wry};

use super::shell::{self, Shell};
use super::window;
use crate::engine::{DeviceState, Engine, State, Status, WalletState};

const CONTRIBUTE: &str = "contribute";
const OPEN: &str = "open";
const QUIT: &str = "quit";

/// What the menu and the icon say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Face {
    state: State,
    pending: String,
    device: String,
    action: &'static str,
    can_act: bool,
}

impl Face {
    fn of(status: &Status) -> Self {
        let device = match &status.device {
            DeviceState::Opening => "Device: looking".to_owned(),
            DeviceState::Ready { name, .. } => format!("Device: {name}"),
            DeviceState::Failed { .. } => "Device: none, see the window".to_owned(),
        };
        let pending = status.account.as_ref().map_or("not known yet".to_owned(), |a| format!("{} KVR", a.pending_kvr));
        let is_ready = status.network.is_some()
            && matches!(status.wallet.state, WalletState::Ready { .. })
            && matches!(status.device, DeviceState::Ready { .. });
        Self {
            state: status.state,
            pending: format!("Pending: {pending}"),
            device,
            action: if status.contributing { "Pause" } else { "Contribute" },
            can_act: status.contributing || is_ready,
        }
    }
}

/// The icon with the parts that change. Its methods are for the main thread.
#[derive(Clone)]
pub(super) struct Icon {
    tray: TrayIcon,
    pending: MenuItem<Wry>,
    device: MenuItem<Wry>,
    action: MenuItem<Wry>,
}

impl Icon {
    /// `None` where the system has no library for icons.
    pub fn build(app: &AppHandle) -> Option<Self> {
        // The library is loaded when first used, and its absence is a panic.
        match catch_unwind(AssertUnwindSafe(|| Self::try_build(app))) {
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

    fn try_build(app: &AppHandle) -> Result<Self, tauri::Error> {
        let face = Face::of(&Status::default());
        let pending = MenuItem::with_id(app, "pending", &face.pending, false, None::<&str>)?;
        let device = MenuItem::with_id(app, "device", &face.device, false, None::<&str>)?;
        let action = MenuItem::with_id(app, CONTRIBUTE, face.action, face.can_act, None::<&str>)?;
        let open = MenuItem::with_id(app, OPEN, "Open Kvasir", true, None::<&str>)?;
        let quit = MenuItem::with_id(app, QUIT, "Quit", true, None::<&str>)?;
        let (first, second) = (PredefinedMenuItem::separator(app)?, PredefinedMenuItem::separator(app)?);
        let menu = Menu::with_items(app, &[&pending, &device, &first, &action, &second, &open, &quit])?;
        let tray = TrayIconBuilder::with_id("main")
            .icon(picture(face.state)?)
            .tooltip("Kvasir")
            .menu(&menu)
            .on_menu_event(|app, event| chosen(app, &event))
            .build(app)?;
        Ok(Self { tray, pending, device, action })
    }

    fn show(&self, before: Option<&Face>, face: &Face) -> Result<(), tauri::Error> {
        if before.is_none_or(|b| b.state != face.state) {
            self.tray.set_icon(Some(picture(face.state)?))?;
        }
        if before.is_none_or(|b| b.pending != face.pending) {
            self.pending.set_text(&face.pending)?;
        }
        if before.is_none_or(|b| b.device != face.device) {
            self.device.set_text(&face.device)?;
        }
        if before.is_none_or(|b| b.action != face.action) {
            self.action.set_text(face.action)?;
        }
        if before.is_none_or(|b| b.can_act != face.can_act) {
            self.action.set_enabled(face.can_act)?;
        }
        Ok(())
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

fn chosen(app: &AppHandle, event: &MenuEvent) {
    let app = app.clone();
    match event.id().as_ref() {
        CONTRIBUTE => drop(tauri::async_runtime::spawn(async move {
            let engine = app.state::<Shell>().engine.clone();
            if toggle(&engine).await {
                return;
            }
            // What is missing is said in the window.
            window::show_soon(&app);
        })),
        OPEN => window::show_soon(&app),
        QUIT => drop(tauri::async_runtime::spawn(async move { shell::quit(&app).await })),
        _ => {}
    }
}

/// Starts or ends contributing; whether that was possible.
async fn toggle(engine: &Engine) -> bool {
    engine.contribute(!engine.status().contributing).await.is_ok()
}

/// Keeps the icon as the view is; from one task, because each change waits for the main thread.
pub(super) async fn keep(app: AppHandle, shell: Shell, icon: Option<Icon>) {
    let Some(icon) = icon else { return };
    let mut views = shell.views();
    let mut before: Option<Face> = None;
    while views.changed().await.is_ok() {
        let face = Face::of(&views.borrow_and_update().engine);
        if before.as_ref() == Some(&face) {
            continue;
        }
        let (icon, old, new) = (icon.clone(), before.replace(face.clone()), face);
        let shown = app.run_on_main_thread(move || {
            if let Err(error) = icon.show(old.as_ref(), &new) {
                tracing::warn!(%error, "the tray icon is not up to date");
            }
        });
        if shown.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Account, Network};

    #[test]
    fn the_menu_says_what_is_owed_and_offers_what_can_be_done() {
        let mut status = Status::default();
        assert_eq!(Face::of(&status).pending, "Pending: not known yet");
        assert!(!Face::of(&status).can_act, "nothing to contribute to");
        status.account = Some(Account {
            pending_nano_kvr: "8945664".into(),
            pending_kvr: "0.00895".into(),
            last_credit_unix_ms: None,
            last_credit_unix_s: None,
            per_day: Vec::new(),
            asked_unix_ms: 0,
        });
        status.wallet.state = WalletState::Ready { address: "a".into() };
        status.device = DeviceState::Ready { name: "CPU".into(), why: "no GPU".into() };
        status.network = Some(Network { operator: "o".into(), gateways: Vec::new(), expires_unix_ms: 0 });
        let face = Face::of(&status);
        assert_eq!((face.pending.as_str(), face.device.as_str()), ("Pending: 0.00895 KVR", "Device: CPU"));
        assert_eq!((face.action, face.can_act), ("Contribute", true));
        status.contributing = true;
        assert_eq!(Face::of(&status).action, "Pause");
    }
}
