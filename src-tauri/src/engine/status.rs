//! What the engine shows of itself; with [`View`] everything that crosses to a window.
//!
//! The window's copy of these types, `ui/src/ipc.ts`, is written from here and `facts.rs` by a test. Money is text, because a page's
//! numbers are floats.

use serde::Serialize;

use super::EngineError;
use super::facts::{ConfirmDownload, DayEarned, Device, Download, Leg, Legs, Pause, StandingBy, WalletStatus, Why};
use super::release::NewRelease;
use super::settings::Settings;
use crate::wire::agent::AGENT;
use crate::wire::control::UPDATE_REQUIRED;
use crate::wire::invite::Invite;
use crate::worker::{Phase, WorkerStatus};

/// One word for all: the tray's icon and the colour of the button.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Linked or about to be, with nothing to compute.
    Idle,
    /// Holding a slice, or fetching one.
    Working,
    /// Not contributing, or not now.
    #[default]
    Paused,
    /// Something that only a person can mend.
    Error,
    /// Contributing, but without a link.
    Offline,
}

/// A failure as data: the code is stable and chooses the words of a window, the message has the values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Problem {
    /// Such as `invite_expired`.
    pub code: String,
    /// What was expected, what there was, and what to do.
    pub message: String,
}

impl From<&EngineError> for Problem {
    fn from(error: &EngineError) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string() }
    }
}

/// The wallet that is paid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum WalletState {
    /// The keyring was asked; perhaps it asks its owner for a password.
    #[default]
    Opening,
    /// The key is there.
    Ready {
        /// base58.
        address: String,
    },
    /// The wallet is known, its key is gone: only its backup can bring it back.
    KeyMissing {
        /// base58.
        address: String,
        /// Where the key should be, and what to do.
        problem: Problem,
    },
    /// The keyring did not do what was asked.
    Failed {
        /// Why.
        problem: Problem,
    },
}

/// What computes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum DeviceState {
    /// Being looked for.
    #[default]
    Opening,
    /// Found.
    Ready {
        /// The hardware and its path.
        name: String,
        /// Completes "because …"; empty when there was nothing to choose.
        why: String,
    },
    /// Nothing here can compute.
    Failed {
        /// Why.
        problem: Problem,
    },
}

/// A network to work for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Network {
    /// The operator's public key.
    pub operator: String,
    /// Where its gateways are.
    pub gateways: Vec<String>,
    /// Until when its code may be taken, milliseconds since 1970.
    #[cfg_attr(test, ts(type = "number"))]
    pub expires_unix_ms: u64,
}

impl From<&Invite> for Network {
    fn from(invite: &Invite) -> Self {
        Self {
            operator: invite.operator.to_string(),
            gateways: invite.gateways.clone(),
            expires_unix_ms: invite.expires_unix_s.saturating_mul(1000),
        }
    }
}

/// The way to the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Link {
    /// Not wanted.
    #[default]
    Off,
    /// Measuring before the first attempt.
    Starting,
    /// Dialling or proving the wallet.
    Connecting {
        /// Whom.
        gateway: String,
    },
    /// A session is open.
    Online,
    /// The hardware went away and is looked for; without it there is no session.
    NoHardware {
        /// What the driver said.
        reason: String,
    },
    /// Between two attempts.
    Waiting {
        /// Why the last one ended.
        reason: String,
        /// The whole pause.
        #[cfg_attr(test, ts(type = "number"))]
        retry_ms: u64,
    },
}

/// The experts here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Slice {
    /// None.
    #[default]
    Nothing,
    /// On their way.
    Fetching {
        /// Verified bytes.
        #[cfg_attr(test, ts(type = "number"))]
        done_bytes: u64,
        /// Bytes of the lease.
        #[cfg_attr(test, ts(type = "number"))]
        total_bytes: u64,
    },
    /// Serving.
    Held {
        /// Such as `0:0-15,1:0-15`.
        experts: String,
    },
}

/// The gateway's account of the wallet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Account {
    /// Credited and not paid out, exactly.
    pub pending_nano_kvr: String,
    /// The same in KVR, five decimals.
    pub pending_kvr: String,
    /// When the newest credit was written, milliseconds since 1970; `null` before the first.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub last_credit_unix_ms: Option<u64>,
    /// The same in seconds.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub last_credit_unix_s: Option<u64>,
    /// What the newest days brought, oldest first; at most 30, days without credit left out.
    pub per_day: Vec<DayEarned>,
    /// When the gateway said so, milliseconds since 1970.
    #[cfg_attr(test, ts(type = "number"))]
    pub asked_unix_ms: u64,
}

/// The engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Status {
    /// All in one word.
    pub state: State,
    /// Whether Contribute was pressed and not taken back, restarts included.
    pub contributing: bool,
    /// A pause that its owner asked for.
    pub pause: Option<Pause>,
    /// Whether courtesy holds work back.
    pub standing_by: Option<StandingBy>,
    /// Why nothing is earned, or that something is: always one reason.
    pub why_not_earning: Why,
    /// The wallet.
    pub wallet: WalletStatus,
    /// What computes.
    pub device: DeviceState,
    /// Everything that could.
    pub devices: Vec<Device>,
    /// The network that was joined.
    pub network: Option<Network>,
    /// An invitation that waits for a yes or no.
    pub offer: Option<Network>,
    /// The way there.
    pub link: Link,
    /// The same, leg by leg.
    pub legs: Legs,
    /// What is held.
    pub slice: Slice,
    /// Experts on their way.
    pub download: Option<Download>,
    /// A large download that waits for a yes.
    pub confirm_download: Option<ConfirmDownload>,
    /// Assignments answered since Contribute was pressed.
    #[cfg_attr(test, ts(type = "number"))]
    pub assignments: u64,
    /// What the gateway last said of the wallet.
    pub account: Option<Account>,
    /// Why the account may be out of date.
    pub account_problem: Option<Problem>,
    /// Why the worker ended although nobody stopped it.
    pub worker_problem: Option<Problem>,
    /// Why the kept network cannot be used.
    pub network_problem: Option<Problem>,
    /// Why settings or other files of the state directory are not what was kept.
    pub state_problem: Option<Problem>,
    /// What the owner has chosen.
    pub settings: Settings,
}

impl Status {
    /// What the worker shows, in the window's words.
    pub(super) fn see(&mut self, worker: &WorkerStatus) {
        let is_ours = self.worker_problem.as_ref().is_none_or(|problem| problem.code == UPDATE_REQUIRED);
        if is_ours {
            self.worker_problem = worker.update_required.then(|| {
                let message = format!("expected a newer program than {AGENT} to work for this network: update it");
                Problem { code: UPDATE_REQUIRED.to_owned(), message }
            });
        }
        self.assignments = worker.assignments;
        self.slice = match &worker.phase {
            Phase::Fetching { done, total } => Slice::Fetching { done_bytes: *done, total_bytes: *total },
            Phase::Serving => Slice::Held { experts: worker.slice.clone() },
            _ => Slice::Nothing,
        };
        self.link = match &worker.phase {
            Phase::Starting => Link::Starting,
            Phase::Connecting { gateway } => Link::Connecting { gateway: gateway.clone() },
            Phase::Offered | Phase::Fetching { .. } | Phase::Serving => Link::Online,
            Phase::Recovering { reason } => Link::NoHardware { reason: reason.clone() },
            Phase::Waiting { reason, retry_ms } => Link::Waiting { reason: reason.clone(), retry_ms: *retry_ms },
            Phase::StandingBy { .. } | Phase::Stopped => Link::Off,
        };
    }

    /// The legs, as far as the link and the account tell.
    pub(super) fn legs_now(&self) -> Legs {
        let (mine, beyond) = match (&self.link, &self.slice) {
            (Link::Off | Link::NoHardware { .. }, _) => (Leg::Off, Leg::Off),
            (Link::Starting | Link::Connecting { .. }, _) => (Leg::Connecting, Leg::Connecting),
            (Link::Waiting { .. }, _) => (Leg::Down, Leg::Down),
            (Link::Online, Slice::Nothing) => (Leg::Up, Leg::Connecting),
            (Link::Online, _) => (Leg::Up, Leg::Up),
        };
        // A gateway that answers for the account is there, whatever becomes of the link.
        let answers = self.account.is_some() && self.account_problem.is_none();
        let gateway = if answers { Leg::Up } else { mine };
        Legs { gateway, hub: mine, backbone: beyond, ..Legs::default() }
    }

    /// The one word that the rest amounts to.
    pub(super) fn summed_up(&self) -> State {
        let wallet_fails = matches!(self.wallet.state, WalletState::KeyMissing { .. } | WalletState::Failed { .. });
        if wallet_fails
            || matches!(self.device, DeviceState::Failed { .. })
            || self.worker_problem.is_some()
            || self.network_problem.is_some()
        {
            return State::Error;
        }
        let works = self.contributing && self.pause.is_none() && self.standing_by.is_none();
        match (works, &self.link, &self.slice) {
            (false, ..) => State::Paused,
            (true, _, Slice::Held { .. } | Slice::Fetching { .. }) => State::Working,
            (true, Link::Waiting { .. } | Link::NoHardware { .. }, _) => State::Offline,
            (true, ..) => State::Idle,
        }
    }
}

/// Whether the program can be reached when its window is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Tray {
    /// Its icon is shown.
    #[default]
    Shown,
    /// The desktop shows no tray icons.
    NoHost,
    /// A library that the icon needs is not installed.
    NoLibrary,
}

/// Everything that a window shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct View {
    /// What the engine says.
    pub engine: Status,
    /// What the shell says.
    pub tray: Tray,
    /// Why the link or file that was opened from outside is no invitation.
    pub opened_problem: Option<Problem>,
    /// The program's version.
    pub version: String,
    /// The language that is spoken, such as `fr`.
    pub language: String,
    /// Whether the window was asked to close for the first time, which is explained before.
    pub is_closing: bool,
    /// Whether the program starts with its owner's session; `null` where it cannot arrange that.
    pub starts_at_login: Option<bool>,
    /// Whether every program that fills the screen can be seen; on Wayland only those of X11 can.
    pub sees_fullscreen: bool,
    /// The newer release, in a build that looks for one.
    pub new_release: NewRelease,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(change: impl FnOnce(&mut Status)) -> State {
        let mut status = Status { contributing: true, ..Status::default() };
        change(&mut status);
        status.summed_up()
    }

    fn problem() -> Problem {
        Problem { code: "code".into(), message: "message".into() }
    }

    #[test]
    fn one_word_sums_up_the_rest() {
        assert_eq!(status(|s| s.contributing = false), State::Paused);
        assert_eq!(status(|_| {}), State::Idle);
        assert_eq!(status(|s| s.link = Link::Online), State::Idle);
        assert_eq!(status(|s| s.slice = Slice::Held { experts: "0:0".into() }), State::Working);
        assert_eq!(status(|s| s.slice = Slice::Fetching { done_bytes: 1, total_bytes: 2 }), State::Working);
        assert_eq!(status(|s| s.link = Link::Waiting { reason: "no".into(), retry_ms: 9 }), State::Offline);
        assert_eq!(status(|s| s.device = DeviceState::Failed { problem: problem() }), State::Error);
        let lost = WalletState::KeyMissing { address: "a".into(), problem: problem() };
        assert_eq!(status(|s| (s.contributing, s.wallet.state) = (false, lost)), State::Error);
        assert_eq!(status(|s| s.account_problem = Some(problem())), State::Idle, "the worker is not concerned");
    }

    #[test]
    fn a_network_that_wants_a_newer_program_is_shown_until_it_does_not() {
        let mut status = Status { contributing: true, ..Status::default() };
        status.see(&WorkerStatus { update_required: true, ..WorkerStatus::default() });
        assert_eq!(status.worker_problem.as_ref().map(|p| p.code.as_str()), Some("update_required"));
        assert_eq!(status.summed_up(), State::Error);
        status.see(&WorkerStatus::default());
        assert_eq!(status.worker_problem, None);
        status.worker_problem = Some(problem());
        status.see(&WorkerStatus::default());
        assert_eq!(status.worker_problem, Some(problem()), "another problem is not ours to end");
    }
}
