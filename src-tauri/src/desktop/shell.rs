//! What the commands, the tray and the window share: the engine and the view of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use tauri::AppHandle;
use tauri::Manager;
use tauri::async_runtime::JoinHandle;
use tokio::sync::watch;

use super::words::Words;
use super::{autostart, window};
use crate::doctor::Report;
use crate::engine::{Engine, NewRelease, Problem, Tray, View};
#[cfg(feature = "gpu")]
use crate::kernel::gpu::GpuOptions;
use crate::shutdown;
use crate::worker::courtesy;

/// The file that remembers that the first close was explained.
const EXPLAINED: &str = "close-explained";

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Shell {
    /// The engine.
    pub engine: Engine,
    view: Arc<watch::Sender<View>>,
    /// What feeds the page; a page that comes later has its own.
    feeding: Arc<Mutex<Option<JoinHandle<()>>>>,
    /// This installation's files.
    pub state_dir: Arc<Path>,
    /// Which GPU the doctor looks for, and how.
    #[cfg(feature = "gpu")]
    pub gpu: Arc<GpuOptions>,
    /// Everything was removed: what the web view keeps goes too, when it is over.
    pub is_removed: Arc<AtomicBool>,
    /// What the doctor found last.
    report: Arc<Mutex<Option<Report>>>,
}

impl Shell {
    pub fn new(engine: Engine, app: &AppHandle, state_dir: PathBuf, #[cfg(feature = "gpu")] gpu: GpuOptions) -> Self {
        let (version, starts_at_login) = (app.package_info().version.to_string(), autostart::is_on(app));
        let sees_fullscreen = courtesy::sees_fullscreen();
        let mut view = View { engine: engine.status(), version, starts_at_login, sees_fullscreen, ..View::default() };
        view.language = words_of(&view).code().to_owned();
        Self {
            engine,
            view: Arc::new(watch::Sender::new(view)),
            feeding: Arc::default(),
            state_dir: state_dir.into(),
            #[cfg(feature = "gpu")]
            gpu: Arc::new(gpu),
            is_removed: Arc::default(),
            report: Arc::default(),
        }
    }

    /// Feeds a page with `feed` instead of the one before, which may be gone without a word.
    pub fn feed(&self, feed: impl Future<Output = ()> + Send + 'static) {
        let feed = tauri::async_runtime::spawn(feed);
        let mut feeding = self.feeding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = feeding.replace(feed) {
            before.abort();
        }
    }

    /// What a window shows, now and from now on.
    pub fn views(&self) -> watch::Receiver<View> {
        let mut views = self.view.subscribe();
        views.mark_changed();
        views
    }

    /// Whether the icon can be seen.
    pub fn tray(&self) -> Tray {
        self.view.borrow().tray
    }

    /// Whether Kvasir starts with the session, where that can be arranged.
    pub fn starts_at_login(&self) -> Option<bool> {
        self.view.borrow().starts_at_login
    }

    /// Shows where the newer release stands.
    pub fn set_new_release(&self, release: NewRelease) {
        self.view.send_modify(|view| view.new_release = release);
    }

    pub fn set_tray(&self, tray: Tray) {
        self.view.send_if_modified(|view| std::mem::replace(&mut view.tray, tray) != tray);
    }

    /// Passes the engine's updates on, at the engine's pace, for as long as it runs.
    pub async fn keep_view(self) {
        let mut updates = self.engine.updates();
        while let Some(status) = updates.next().await {
            self.view.send_modify(|view| {
                view.engine = status;
                words_of(view).code().clone_into(&mut view.language);
            });
        }
    }

    /// Shows the invitation of a link or file that came from outside the window, or why it is none.
    pub async fn open(&self, text: String) {
        let offered = match super::code_of(&text) {
            Ok(code) => self.engine.offer(code).await,
            Err(error) => Err(error),
        };
        let problem = offered.err().map(|error| Problem::from(&error));
        self.view.send_modify(|view| view.opened_problem = problem);
    }

    /// Whether a window may close now. The first time its page explains first what goes on behind it; somebody who
    /// does not read that closes again.
    pub fn may_close(&self) -> bool {
        if self.state_dir.join(EXPLAINED).exists() {
            return true;
        }
        let was_asked = self.view.borrow().is_closing;
        self.view.send_modify(|view| view.is_closing = !was_asked);
        if was_asked {
            self.keep_explained();
        }
        was_asked
    }

    /// The explanation is given once.
    fn keep_explained(&self) {
        if let Err(error) = std::fs::write(self.state_dir.join(EXPLAINED), "") {
            tracing::warn!(%error, "the next close is explained again");
        }
    }

    /// The explanation was read: the window stays, or closes from now on without a word.
    pub fn answer_closing(&self, app: &AppHandle, closes: bool) {
        self.view.send_modify(|view| view.is_closing = false);
        if !closes {
            return;
        }
        self.keep_explained();
        window::destroy_soon(app);
    }

    /// What the doctor found last.
    pub fn report(&self) -> Option<Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn keep_report(&self, report: Report) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    /// Starts with the owner's session from now on, or not.
    pub fn start_at_login(&self, app: &AppHandle, on: bool) -> Result<(), Problem> {
        let switched = autostart::switch(app, on);
        let now = autostart::is_on(app);
        self.view.send_if_modified(|view| std::mem::replace(&mut view.starts_at_login, now) != now);
        switched.map_err(|error| Problem {
            code: "autostart".to_owned(),
            message: format!("expected to write the session's list of programs to start, got: {error}"),
        })
    }

    /// Forgets what was wrong with the last link.
    pub fn forget_problem(&self) {
        self.view.send_if_modified(|view| view.opened_problem.take().is_some());
    }
}

/// The language that a view is in.
fn words_of(view: &View) -> Words {
    Words::of(view.engine.settings.language)
}

/// Lets the worker drain, then ends the program.
pub(super) async fn quit(app: &AppHandle) {
    let shell = app.state::<Shell>().inner().clone();
    shell.engine.stop().await;
    app.exit(0);
}

/// Completes when the program is told to end: SIGTERM, SIGINT, or SIGHUP from a session that ends.
pub(super) async fn session_end() {
    #[cfg(unix)]
    let hangup = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()) {
            Ok(mut hangups) => drop(hangups.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let hangup = std::future::pending::<()>();
    tokio::select! {
        () = hangup => {}
        told = shutdown::termination() => if let Err(error) = told {
            tracing::warn!(%error, "cannot listen for SIGTERM");
            std::future::pending::<()>().await;
        },
    }
}
