//! All that the page may ask for. `build.rs` lists these names, and `capabilities/main.json` allows them.

use std::sync::atomic::Ordering::Relaxed;

use tauri::ipc::{Channel, Invoke};
use tauri::{AppHandle, State, Wry};
use zeroize::Zeroizing;

use super::diagnose as doctor;
use super::shell::{self, Shell};
use super::updates;
use crate::doctor::Report;
use crate::engine::{ClaimRoom, EngineError, PauseKind, Problem, ReceiptLine, Settings, View};

type Answer<T = ()> = Result<T, Problem>;

pub(super) fn handler() -> impl Fn(Invoke<Wry>) -> bool + Send + Sync + 'static {
    tauri::generate_handler![
        watch,
        offer,
        accept,
        decline,
        leave,
        contribute,
        pause,
        resume,
        switch_device,
        save_settings,
        confirm_download,
        slices_bytes,
        delete_slices,
        remove_everything,
        receipts,
        open_wallet,
        show_phrase,
        verify_phrase,
        restore_wallet,
        new_wallet,
        set_password,
        unlock,
        claim_room,
        claim,
        diagnose,
        save_report,
        start_at_login,
        look_for_update,
        install_update,
        close_window,
        stay,
        quit
    ]
}

fn answer<T>(done: Result<T, EngineError>) -> Answer<T> {
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
async fn pause(kind: PauseKind, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.pause(kind).await)
}

#[tauri::command]
async fn resume(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.resume().await)
}

#[tauri::command]
async fn switch_device(id: String, on: bool, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.switch_device(id, on).await)
}

#[tauri::command]
async fn save_settings(settings: Settings, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.save_settings(settings).await)
}

#[tauri::command]
async fn confirm_download(yes: bool, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.confirm_download(yes).await)
}

#[tauri::command]
async fn slices_bytes(shell: State<'_, Shell>) -> Answer<u64> {
    answer(shell.engine.slices_bytes().await)
}

#[tauri::command]
async fn delete_slices(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.delete_slices().await)
}

/// Ends the program as well: a new start would make a new wallet.
#[tauri::command]
async fn remove_everything(confirmed_without_backup: bool, app: AppHandle, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.remove_everything(confirmed_without_backup).await)?;
    if shell.starts_at_login() == Some(true)
        && let Err(problem) = shell.start_at_login(&app, false)
    {
        // An emptied program goes on no more for that.
        tracing::warn!(problem.message, "the entry that starts the program stays");
    }
    shell.is_removed.store(true, Relaxed);
    shell::quit(&app).await;
    Ok(())
}

#[tauri::command]
async fn receipts(shell: State<'_, Shell>) -> Answer<Vec<ReceiptLine>> {
    answer(shell.engine.receipts().await)
}

#[tauri::command]
async fn open_wallet(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.open_wallet().await)
}

#[tauri::command]
async fn show_phrase(shell: State<'_, Shell>) -> Answer<Vec<String>> {
    // The page's copy is its own; the engine's is wiped here.
    answer(shell.engine.show_phrase().await).map(|words| words.to_vec())
}

#[tauri::command]
async fn verify_phrase(answers: Vec<(usize, String)>, shell: State<'_, Shell>) -> Answer {
    let answers = answers.into_iter().map(|(position, word)| (position, Zeroizing::new(word))).collect();
    answer(shell.engine.verify_phrase(answers).await)
}

#[tauri::command]
async fn restore_wallet(phrase: String, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.restore_wallet(Zeroizing::new(phrase)).await)
}

#[tauri::command]
async fn new_wallet(shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.new_wallet().await)
}

#[tauri::command]
async fn set_password(password: String, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.set_password(Zeroizing::new(password)).await)
}

#[tauri::command]
async fn unlock(password: String, shell: State<'_, Shell>) -> Answer {
    answer(shell.engine.unlock(Zeroizing::new(password)).await)
}

#[tauri::command]
async fn claim_room(shell: State<'_, Shell>) -> Answer<ClaimRoom> {
    answer(shell.engine.claim_room().await)
}

#[tauri::command]
async fn claim(nano: String, shell: State<'_, Shell>) -> Answer<String> {
    answer(shell.engine.claim(Some(nano)).await)
}

#[tauri::command]
async fn diagnose(shell: State<'_, Shell>) -> Answer<Report> {
    let report = doctor::examine(&shell).await;
    shell.keep_report(report.clone());
    Ok(report)
}

/// Writes the newest report to a file, and says where: the page chooses no path.
#[tauri::command]
async fn save_report(app: AppHandle, shell: State<'_, Shell>) -> Answer<String> {
    let report = shell.report().ok_or_else(|| Problem {
        code: "no_report".to_owned(),
        message: "expected a report to save, got none: examine first".to_owned(),
    })?;
    doctor::save(&app, &report).map(|path| path.display().to_string())
}

#[tauri::command]
async fn start_at_login(on: bool, app: AppHandle, shell: State<'_, Shell>) -> Answer {
    shell.start_at_login(&app, on)
}

/// Closes the window after its first close was explained.
#[tauri::command]
async fn close_window(app: AppHandle, shell: State<'_, Shell>) -> Answer {
    shell.answer_closing(&app, true);
    Ok(())
}

#[tauri::command]
async fn stay(app: AppHandle, shell: State<'_, Shell>) -> Answer {
    shell.answer_closing(&app, false);
    Ok(())
}

#[tauri::command]
async fn look_for_update(app: AppHandle, shell: State<'_, Shell>) -> Answer {
    updates::look(&app, &shell).await;
    Ok(())
}

/// Answers when it is known that it failed; else the program is another one.
#[tauri::command]
async fn install_update(app: AppHandle, shell: State<'_, Shell>) -> Answer {
    updates::install(&app, &shell).await;
    Ok(())
}

#[tauri::command]
async fn quit(app: AppHandle) -> Answer {
    shell::quit(&app).await;
    Ok(())
}
