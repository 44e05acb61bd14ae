//! Tells the desktop of the few things that cannot wait until the window is opened, and only if its owner wants that.
//!
//! **Promises:** one notice when something begins to need a person, one when the first credit comes to a wallet that is
//! not backed up; a desktop without a notification service misses nothing else.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::timeout;
use tracing::info;
use zbus::Connection;
use zbus::zvariant::Value;

use super::shell::Shell;
use super::words::Words;
use crate::engine::{State, Status, WalletState};

/// Longest wait for a notification service; one that hangs keeps back no other notice.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where the desktop decides how long a notice stays.
const ITS_OWN_TIME: i32 = -1;

/// What was told already.
#[derive(Default)]
struct Told {
    is_error: bool,
    has_credit: Option<bool>,
}

impl Told {
    /// The title and text of what is new in `status`, if anything is.
    fn news(&mut self, status: &Status, words: Words) -> Option<(String, String)> {
        let was_error = std::mem::replace(&mut self.is_error, status.state == State::Error);
        let account = status.account.as_ref();
        let has_credit = account.map(|account| account.last_credit_unix_ms.is_some());
        let had_credit = self.has_credit;
        self.has_credit = has_credit.or(had_credit);
        if self.is_error && !was_error {
            return Some((words.say("notice.error"), words.say("why.problem")));
        }
        let is_first = had_credit == Some(false) && has_credit == Some(true);
        let is_at_risk = matches!(status.wallet.state, WalletState::Ready { .. }) && !status.wallet.backed_up;
        (is_first && is_at_risk).then(|| (words.say("notice.backup"), words.say("notice.backup.body")))
    }
}

/// Tells for as long as the shell has views.
pub(super) async fn keep(shell: Shell) {
    let mut views = shell.views();
    let mut told = Told::default();
    while views.changed().await.is_ok() {
        let status = views.borrow_and_update().engine.clone();
        let news = told.news(&status, Words::of(status.settings.language));
        if let Some((title, text)) = news.filter(|_| status.settings.notifications) {
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
    use crate::engine::{Account, Language};

    #[test]
    fn trouble_is_told_once_and_the_first_credit_only_to_a_wallet_without_a_backup() {
        let words = Words::of(Language::En);
        let mut status = Status { state: State::Error, ..Status::default() };
        let mut told = Told::default();
        assert_eq!(told.news(&status, words).unwrap().0, "Kvasir needs you");
        assert_eq!(told.news(&status, words), None);
        status.state = State::Working;
        status.wallet.state = WalletState::Ready { address: "a".into() };
        status.account = Some(Account::default());
        assert_eq!(told.news(&status, words), None);
        status.account = Some(Account { last_credit_unix_ms: Some(1), ..Account::default() });
        let mut again = Told { has_credit: Some(false), ..Told::default() };
        assert_eq!(told.news(&status, words).unwrap().0, "You have earned your first KVR");
        assert_eq!(told.news(&status, words), None);
        status.wallet.backed_up = true;
        assert_eq!(again.news(&status, words), None);
    }
}
