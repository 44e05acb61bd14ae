//! The contributor's app: a tray icon, a window on demand, and the engine behind both.
//!
//! This is the only room that knows Tauri, and it decides nothing about work or money: it shows the engine's status
//! and passes clicks on. **Promises:** one instance; a closed window costs no web process; where no tray shows the
//! icon, the window stays and says so; Quit, SIGTERM and the end of a session let the worker drain first.

mod autostart;
mod commands;
mod diagnose;
mod face;
#[cfg(target_os = "linux")]
mod notices;
mod shell;
mod tray;
#[cfg(target_os = "linux")]
mod tray_host;
mod updates;
mod web_data;
#[cfg(target_os = "linux")]
mod web_processes;
mod window;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use tauri::{App, AppHandle, Manager, RunEvent, WindowEvent};
use tokio::runtime::Runtime;

use crate::engine::{Engine, EngineConfig, FindHardware, Tray};
#[cfg(feature = "gpu")]
use crate::kernel::gpu::GpuOptions;
use crate::net::dial::{Connector, Outbound};
use crate::wallet::OsKeyStore;
use crate::worker::network;
use face::Face;
use shell::Shell;
use window::Page;

/// Name under which the keyring keeps this app's wallet.
const KEYRING_SERVICE: &str = "net.kvasir.app";

/// What the app is told.
pub struct Options {
    /// Directory of the wallet's address, the network and receipts; the desktop's usual place when absent.
    pub state: Option<PathBuf>,
    /// Bytes that experts may take; when absent, what the hardware has room for.
    pub memory_bytes: Option<u64>,
    /// How gateways are reached.
    pub outbound: Outbound,
    /// Finds what computes; its results may be kept in the directory.
    pub hardware: Box<dyn FnOnce(&Path) -> FindHardware + Send>,
    /// Which GPU the doctor looks for, and how.
    #[cfg(feature = "gpu")]
    pub gpu: GpuOptions,
    /// A join code, or the file with one, to show at the start.
    pub join: Option<String>,
    /// Whether to wait in the tray.
    pub hidden: bool,
}

/// Why there is no app.
#[derive(Debug, thiserror::Error)]
pub enum DesktopError {
    /// A terminal, or a server.
    #[error(
        "expected a graphical session, got neither WAYLAND_DISPLAY nor DISPLAY: on a server, run kvasir --headless worker"
    )]
    NoDisplay,
    /// The window system.
    #[error("the desktop: {0}")]
    Tauri(#[from] tauri::Error),
}

/// Runs the app on the main thread until Quit.
///
/// # Errors
/// No graphical session, or one that fails.
pub fn run(options: Options, runtime: &Runtime) -> Result<ExitCode, DesktopError> {
    if cfg!(target_os = "linux") && ["WAYLAND_DISPLAY", "DISPLAY"].iter().all(|name| std::env::var_os(name).is_none()) {
        return Err(DesktopError::NoDisplay);
    }
    let _inside = runtime.enter();
    tauri::async_runtime::set(runtime.handle().clone());
    let opened = |app: &AppHandle, args: Vec<String>, dir: String| {
        let app = app.clone();
        let join = joined_from(&args, Path::new(&dir));
        tauri::async_runtime::spawn(async move {
            if let Some(text) = join {
                app.state::<Shell>().open(text).await;
            }
            window::show_soon(&app, Page::Home);
        });
    };
    let context = tauri::generate_context!();
    let mut builder = tauri::Builder::default().plugin(tauri_plugin_single_instance::init(opened));
    if updates::are_wanted(context.config()) {
        builder = builder.plugin(updates::plugin());
    }
    let app = builder
        .invoke_handler(commands::handler())
        .on_window_event(|window, event| {
            if let WindowEvent::CloseRequested { api, .. } = event {
                let shell = window.state::<Shell>();
                // Without an icon there would be no way back.
                if shell.tray() != Tray::Shown || !shell.may_close() {
                    api.prevent_close();
                }
            }
        })
        .setup(move |app| Ok(start(app, options)?))
        .build(context)?;
    let ended = app.handle().clone();
    let code = app.run_return(|app, event| match event {
        // The last window was closed; only Quit quits.
        RunEvent::ExitRequested { code: None, api, .. } => api.prevent_exit(),
        #[cfg(target_os = "linux")]
        RunEvent::WindowEvent { event: WindowEvent::Destroyed, .. } => {
            tauri::async_runtime::spawn(web_processes::end(app.clone()));
        }
        _ => {}
    });
    if ended.try_state::<Shell>().is_some_and(|shell| shell.is_removed.load(Relaxed))
        && let Ok(dir) = ended.path().app_local_data_dir()
    {
        #[cfg(target_os = "linux")]
        web_processes::end_now();
        web_data::remove(&dir);
    }
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Starts the engine and shows it.
fn start(app: &mut App, options: Options) -> Result<(), tauri::Error> {
    let state = match options.state {
        Some(dir) => dir,
        None => app.path().app_local_data_dir()?,
    };
    let store = std::sync::Arc::new(OsKeyStore::new(KEYRING_SERVICE));
    let config = EngineConfig::new(state.clone(), store, (options.hardware)(&state));
    let connector = Connector::new(&options.outbound);
    // The engine's task ends with its last handle, or with Quit.
    let (engine, _) =
        Engine::start(EngineConfig { memory_bytes: options.memory_bytes, outbound: options.outbound, ..config });
    let shell = Shell::new(
        engine,
        app.handle(),
        state,
        #[cfg(feature = "gpu")]
        options.gpu,
    );
    app.manage(shell.clone());
    let face = Face::of(&shell.views().borrow());
    let icon = tray::Icon::build(app.handle(), &face).map(|icon| (icon, face));
    if icon.is_none() {
        shell.set_tray(Tray::NoLibrary);
    } else {
        #[cfg(target_os = "linux")]
        tauri::async_runtime::spawn(tray_host::watch(shell.clone()));
    }
    #[cfg(target_os = "linux")]
    tauri::async_runtime::spawn(notices::keep(shell.clone()));
    tauri::async_runtime::spawn(shell.clone().keep_view());
    updates::start(app.handle(), &shell, connector);
    tauri::async_runtime::spawn(window::keep_reachable(app.handle().clone(), shell.clone()));
    tauri::async_runtime::spawn(tray::keep(app.handle().clone(), shell.clone(), icon));
    let quitting = app.handle().clone();
    tauri::async_runtime::spawn(async move {
        shell::session_end().await;
        shell::quit(&quitting).await;
    });
    if let Some(text) = options.join {
        tauri::async_runtime::spawn(async move { shell.open(text).await });
    }
    if !options.hidden {
        window::show(app.handle(), Page::Home)?;
    }
    Ok(())
}

/// The invitation that a second start was given; file names are relative to where it was started.
fn joined_from(args: &[String], dir: &Path) -> Option<String> {
    // As the command line of a first start is read: `--flag value` or `--flag=value`.
    let value = |flag: &str| {
        args.iter().enumerate().find_map(|(at, arg)| match arg.strip_prefix(flag)? {
            "" => args.get(at + 1).filter(|next| !next.starts_with("--")).cloned(),
            rest => rest.strip_prefix('=').map(str::to_owned),
        })
    };
    let text = value("--open").or_else(|| value("--join"))?;
    let file = dir.join(&text);
    Some(if file.is_file() { file.display().to_string() } else { text })
}

/// The code in `text`, or in the file that it names.
fn code_of(text: &str) -> Result<String, crate::engine::EngineError> {
    Ok(network::code_of(text)?)
}
