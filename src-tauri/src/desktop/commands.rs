//! All that the page may ask for. `build.rs` lists these names, and `capabilities/main.json` allows them.

use tauri::ipc::{Channel, Invoke};
use tauri::{AppHandle, State, Wry};

use super::shell::{self, Shell};
use crate::engine::{EngineError, Problem, View};

type Answer = Result<(), Problem>;

pub(super) fn handler() -> impl Fn(Invoke<Wry>) -> bool + Send + Sync + 'static {
    tauri::generate_handler![watch, offer, accept, decline, leave, contribute, open_wallet, quit]
}

fn answer(done: Result<(), EngineError>) -> Answer {
    done.map_err(|error| Problem::from(&error))
}

/// Sends the present view and each later one, until the page is gone.
#[tauri::command]
async fn watch(views: Channel<View>, shell: State<'_, Shell>) -> Answer {
    let mut news = shell.views();
    shell.feed(async move {
        while news.changed().await.is_ok() {
            let view = news.borrow_and_update().clone();
            if views.send(view).is_err() {
                return;
            }
        }
    });
    Ok(())
}

#[tauri::command]
async fn offer(code: String, shell: State<'_, Shell>) -> Answer {
    shell.forget_problem();
    answer(shell.engine.offer(code).await)
}

#[tauri::command]
async fn accept(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.accept().await)
}

#[tauri::command]
async fn decline(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.decline().await)
}

#[tauri::command]
async fn leave(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.leave().await)
}

#[tauri::command]
async fn contribute(on: bool, shell: State<'_, Shell>) -> Answer {
    shell.forget_problem();
    answer(shell.engine.contribute(on).await)
}

#[tauri::command]
async fn open_wallet(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.open_wallet().await)
}

#[tauri::command]
async fn quit(app: AppHandle) -> Answer {
    shell::quit(&app).await;
    Ok(())
}
