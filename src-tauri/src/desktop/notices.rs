//! Tells the desktop of the few things that cannot wait until the window is opened, and only if its owner wants that.
//!
//! **Promises:** one notice when something begins to need a person, which says what, a download that waits for a yes
//! included; one when the first credit comes to a wallet that is not backed up; a desktop without a notification service misses nothing else.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::timeout;
use tracing::info;
use zbus::Connection;
use zbus::zvariant::Value;

use super::shell::Shell;
use super::words::Words;
use crate::engine::{DeviceState, State, Status, WalletState};

/// Longest wait for a notification service; one that hangs keeps back no other notice.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where the desktop decides how long a notice stays.
const ITS_OWN_TIME: i32 = -1;

/// What was told already.
#[derive(Default)]
struct Told {
    is_error: bool,
    is_asked: bool,
    has_credit: Option<bool>,
}

impl Told {
    /// Titles and texts of what is new in `status`.
    fn news(&mut self, status: &Status, words: Words) -> Vec<(String, String)> {
        let was_error = std::mem::replace(&mut self.is_error, status.state == State::Error);
        let was_asked = std::mem::replace(&mut self.is_asked, status.confirm_download.is_some());
        let account = status.account.as_ref();
        let has_credit = account.map(|account| account.last_credit_unix_ms.is_some());
        let had_credit = self.has_credit;
        self.has_credit = has_credit.or(had_credit);
        let mut news = Vec::new();
        if self.is_error && !was_error {
            news.push((words.say("notice.error"), trouble(status, words)));
        }
        if self.is_asked && !was_asked {
            news.push((words.say("notice.error"), words.say("why.confirm_download")));
        }
        let is_first = had_credit == Some(false) && has_credit == Some(true);
        let is_at_risk = matches!(status.wallet.state, WalletState::Ready { .. }) && !status.wallet.backed_up;
        if is_first && is_at_risk {
            news.push((words.say("notice.backup"), words.say("notice.backup.body")));
        }
        news
    }
}

/// What needs a person, in one sentence.
fn trouble(status: &Status, words: Words) -> String {
    let problem = match (&status.wallet.state, &status.device) {
        (WalletState::KeyMissing { .. }, _) => return words.say("recovery.missing.title"),
        (WalletState::Failed { problem }, _) | (_, DeviceState::Failed { problem }) => Some(problem),
        _ => status.network_problem.as_ref().or(status.worker_problem.as_ref()),
    };
    let Some(problem) = problem else { return words.say("notice.error.body") };
    words.advice(&problem.code).unwrap_or_else(|| problem.message.clone())
}

/// Tells for as long as the shell has views.
pub(super) async fn keep(shell: Shell) {
    let mut views = shell.views();
    let mut told = Told::default();
    while views.changed().await.is_ok() {
        let status = views.borrow_and_update().engine.clone();
        let news = told.news(&status, Words::of(status.settings.language));
        for (title, text) in news.into_iter().filter(|_| status.settings.notifications) {
            match timeout(PATIENCE, tell(&title, &text)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => info!(%error, "the desktop takes no notices"),
                Err(_) => info!("the desktop's notification service does not answer"),
            }
        }
    }
}

async fn tell(title: &str, text: &str) -> zbus::Result<()> {
    const NAME: &str = "org.freedesktop.Notifications";
    let connection = Connection::session().await?;
    let (actions, hints) = (Vec::<&str>::new(), HashMap::<&str, Value<'_>>::new());
    let notice = ("Kvasir", 0u32, "kvasir", title, text, actions, hints, ITS_OWN_TIME);
    connection.call_method(Some(NAME), "/org/freedesktop/Notifications", Some(NAME), "Notify", &notice).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Account, ConfirmDownload, Language, Problem};

    fn titles(told: &mut Told, status: &Status) -> Vec<String> {
        told.news(status, Words::of(Language::En)).into_iter().map(|(title, _)| title).collect()
    }

    #[test]
    fn trouble_is_told_once_and_the_first_credit_only_to_a_wallet_without_a_backup() {
        let mut status = Status { state: State::Error, ..Status::default() };
        let mut told = Told::default();
        assert_eq!(titles(&mut told, &status), ["Kvasir needs you"]);
        assert!(titles(&mut told, &status).is_empty());
        status.state = State::Working;
        status.wallet.state = WalletState::Ready { address: "a".into() };
        status.account = Some(Account::default());
        assert!(titles(&mut told, &status).is_empty());
        status.account = Some(Account { last_credit_unix_ms: Some(1), ..Account::default() });
        let mut again = Told { has_credit: Some(false), ..Told::default() };
        assert_eq!(titles(&mut told, &status), ["You have earned your first KVR"]);
        assert!(titles(&mut told, &status).is_empty());
        status.wallet.backed_up = true;
        assert!(titles(&mut again, &status).is_empty());
    }

    #[test]
    fn trouble_is_named_and_takes_no_other_notice_away() {
        let words = Words::of(Language::En);
        let mut status = Status { state: State::Error, ..Status::default() };
        status.wallet.state = WalletState::Ready { address: "a".into() };
        status.worker_problem = Some(Problem { code: "update_required".into(), message: "expected 2, got 1".into() });
        status.account = Some(Account { last_credit_unix_ms: Some(1), ..Account::default() });
        let mut told = Told { has_credit: Some(false), ..Told::default() };
        let news = told.news(&status, words);
        assert_eq!(news.len(), 2, "{news:?}");
        assert_eq!(news[0].1, "The network needs a newer Kvasir. Please update.");
        status.worker_problem = Some(Problem { code: "of_no_catalogue".into(), message: "expected 2, got 1".into() });
        assert_eq!(trouble(&status, words), "expected 2, got 1");
    }

    #[test]
    fn a_download_that_waits_for_a_yes_is_told_once() {
        let asks = ConfirmDownload { needed_bytes: 2, free_disk_bytes: 3, cap_bytes: 4, eta_s: None };
        let status = Status { confirm_download: Some(asks), ..Status::default() };
        let mut told = Told::default();
        assert_eq!(titles(&mut told, &status), ["Kvasir needs you"]);
        assert!(titles(&mut told, &status).is_empty());
    }
}
