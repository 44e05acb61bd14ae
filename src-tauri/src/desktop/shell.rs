//! What the commands, the tray and the window share: the engine and the view of it.

use std::sync::{Arc, Mutex, PoisonError};

use tauri::AppHandle;
use tauri::Manager;
use tauri::async_runtime::JoinHandle;
use tokio::sync::watch;

use crate::engine::{Engine, Problem, Tray, View};
use crate::shutdown;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Shell {
    /// The engine.
    pub engine: Engine,
    view: Arc<watch::Sender<View>>,
    /// What feeds the page; a page that comes later has its own.
    feeding: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Shell {
    pub fn new(engine: Engine, version: String) -> Self {
        let view = View { engine: engine.status(), version, ..View::default() };
        Self { engine, view: Arc::new(watch::Sender::new(view)), feeding: Arc::default() }
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

    pub fn set_tray(&self, tray: Tray) {
        self.view.send_if_modified(|view| std::mem::replace(&mut view.tray, tray) != tray);
    }

    /// Passes the engine's updates on, at the engine's pace, for as long as it runs.
    pub async fn keep_view(self) {
        let mut updates = self.engine.updates();
        while let Some(status) = updates.next().await {
            self.view.send_modify(|view| view.engine = status);
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

    /// Forgets what was wrong with the last link.
    pub fn forget_problem(&self) {
        self.view.send_if_modified(|view| view.opened_problem.take().is_some());
    }
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
