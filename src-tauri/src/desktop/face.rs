//! What the tray's icon and menu say: the engine's status in a few lines of the user's language.

use super::words::Words;
use crate::engine::{DeviceState, NewRelease, State, Status, View, WalletState};

/// What the topmost action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Contribute, as far as that is possible.
    Contribute,
    /// End the pause.
    Resume,
    /// Stop contributing.
    Stop,
}

impl Action {
    /// What a click does now.
    pub fn of(status: &Status) -> Self {
        match (status.pause, status.contributing) {
            (Some(_), _) => Self::Resume,
            (None, true) => Self::Stop,
            (None, false) => Self::Contribute,
        }
    }
}

/// The menu's lines; the same lines are the same menu.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Face {
    pub state: State,
    pub tooltip: String,
    pub pending: String,
    pub device: String,
    /// Only until the wallet is backed up.
    pub backup: Option<String>,
    /// Only while a large download waits for a yes.
    pub download: Option<String>,
    /// Only while a newer release can be installed.
    pub release: Option<String>,
    pub action: String,
    pub can_act: bool,
    pub pause: String,
    pub hour: String,
    pub until_resumed: String,
    pub can_pause: bool,
    pub open: String,
    pub login: String,
    pub starts_at_login: Option<bool>,
    pub quit: String,
}

impl Face {
    pub fn of(view: &View) -> Self {
        let status = &view.engine;
        let words = Words::of(status.settings.language);
        let action = Action::of(status);
        let is_wallet_open = matches!(status.wallet.state, WalletState::Ready { .. });
        let has_device = matches!(status.device, DeviceState::Ready { .. });
        let is_ready = status.network.is_some() && is_wallet_open && has_device;
        let state = words.say(match status.state {
            State::Idle => "state.idle",
            State::Working => "state.working",
            State::Paused => "state.paused",
            State::Error => "state.error",
            State::Offline => "state.offline",
        });
        Self {
            state: status.state,
            tooltip: format!("Kvasir – {state}"),
            pending: status.account.as_ref().map_or_else(
                || words.say("menu.pending_unknown"),
                |account| words.say_with("menu.pending", "kvr", &words.number(&account.pending_kvr)),
            ),
            device: match &status.device {
                DeviceState::Opening => words.say("menu.device_looking"),
                DeviceState::Ready { name, .. } => words.say_with("menu.device", "device", name),
                DeviceState::Failed { .. } => words.say("menu.device_none"),
            },
            backup: (is_wallet_open && !status.wallet.backed_up).then(|| words.say("menu.backup")),
            download: status.confirm_download.map(|_| words.say("download.title")),
            release: match &view.new_release {
                NewRelease::Found { version } | NewRelease::Failed { version, .. } => {
                    Some(words.say_with("menu.release", "version", version))
                }
                _ => None,
            },
            action: words.say(match action {
                Action::Contribute => "contribute",
                Action::Resume => "resume",
                Action::Stop => "stop",
            }),
            can_act: action != Action::Contribute || is_ready,
            pause: words.say("menu.pause"),
            hour: words.say("menu.hour"),
            until_resumed: words.say("menu.until_resumed"),
            can_pause: action == Action::Stop,
            open: words.say("menu.open"),
            login: words.say("menu.login"),
            starts_at_login: view.starts_at_login,
            quit: words.say("quit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Account, ConfirmDownload, Language, Network, Pause, PauseKind};

    #[test]
    fn the_menu_says_what_is_owed_and_offers_what_can_be_done() {
        let mut view = View::default();
        view.engine.settings.language = Language::En;
        let nothing = Face::of(&view);
        assert_eq!(nothing.pending, "Pending: not known yet");
        assert!(!nothing.can_act && !nothing.can_pause, "nothing to contribute to");
        assert_eq!(nothing.backup, None, "no wallet to back up");

        let status = &mut view.engine;
        status.account = Some(Account { pending_kvr: "0.00895".into(), ..Account::default() });
        status.wallet.state = WalletState::Ready { address: "a".into() };
        status.device = DeviceState::Ready { name: "CPU".into(), why: "no GPU".into() };
        status.network = Some(Network { operator: "o".into(), gateways: Vec::new(), expires_unix_ms: 0 });
        let face = Face::of(&view);
        assert_eq!((face.pending.as_str(), face.device.as_str()), ("Pending: 0.00895 KVR", "Device: CPU"));
        assert_eq!((face.action.as_str(), face.can_act, face.can_pause), ("Contribute", true, false));
        assert!(face.backup.is_some());
        assert_eq!((face.release, face.download), (None, None));
        view.new_release = NewRelease::Found { version: "9.9.9".into() };
        assert_eq!(Face::of(&view).release.as_deref(), Some("Install version 9.9.9"));
        view.engine.settings.language = Language::Fr;
        assert_eq!(Face::of(&view).pending, "En attente : 0,00895 KVR");
        view.engine.settings.language = Language::En;

        let asked = ConfirmDownload { needed_bytes: 2, free_disk_bytes: 9, cap_bytes: 9, eta_s: None };
        view.engine.confirm_download = Some(asked);
        assert_eq!(Face::of(&view).download.as_deref(), Some("Download the slice?"));
        view.engine.contributing = true;
        view.engine.wallet.backed_up = true;
        let face = Face::of(&view);
        assert_eq!((face.action.as_str(), face.can_pause, face.backup), ("Stop contributing", true, None));
        view.engine.pause = Some(Pause { kind: PauseKind::UntilResumed, until_unix_s: None });
        let face = Face::of(&view);
        assert_eq!((face.action.as_str(), face.can_act, face.can_pause), ("Resume", true, false));
    }
}
