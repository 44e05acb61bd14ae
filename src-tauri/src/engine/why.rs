//! "Why am I not earning?": the one reason, from the status and the time of the last answer.
//!
//! The reasons are asked in the order in which they must be mended: without a wallet a network is of no use, and
//! without a link a slice is not.

use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::{Why, WhyCode};
use super::status::{Account, DeviceState, Link, Slice, Status, WalletState};
use crate::wire::control::UPDATE_REQUIRED;
use crate::worker::Trouble;

/// An answer or a credit that is older says nothing about now.
const RECENT: Duration = Duration::from_secs(60);

/// What the status does not show; times by the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    pub now: Duration,
    /// When the worker last answered anything.
    pub answered: Option<Duration>,
    /// When a new credit was last seen.
    pub credited: Option<Duration>,
    /// Where the way to the hub fails.
    pub trouble: Option<Trouble>,
}

/// Sees credits come, whatever the gateway's clock says: it is another one than this machine's.
#[derive(Debug, Default)]
pub(super) struct Credits {
    /// The gateway's time of the newest, in milliseconds since 1970; the outer `None` before it said anything.
    newest: Option<Option<u64>>,
    seen: Option<Duration>,
}

impl Credits {
    /// When a new credit was last seen, now that the account is this one. Of a credit that was there before anybody
    /// looked only the two wall clocks, `now_unix_ms` being ours, can tell whether it is new.
    pub fn see(&mut self, account: Option<&Account>, now: Duration, now_unix_ms: u64) -> Option<Duration> {
        let Some(account) = account else {
            *self = Self::default();
            return None;
        };
        let last = account.last_credit_unix_ms;
        let before = self.newest.replace(last.max(self.newest.flatten()));
        let recent_ms = u64::try_from(RECENT.as_millis()).unwrap_or(u64::MAX);
        let is_new = match before {
            Some(before) => last > before,
            None => last.is_some_and(|at| at.saturating_add(recent_ms) >= now_unix_ms),
        };
        if is_new {
            self.seen = Some(now);
        }
        self.seen
    }
}

/// The one reason.
pub(super) fn why(status: &Status, beside: Beside) -> Why {
    let (code, args) = reason(status, beside);
    let args = args.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>();
    Why { code, args }
}

type Reason = (WhyCode, Vec<(&'static str, String)>);

fn reason(status: &Status, beside: Beside) -> Reason {
    let plain = |code| (code, Vec::new());
    match &status.wallet.state {
        WalletState::Ready { .. } => {}
        WalletState::Opening => return (WhyCode::NoWallet, vec![("code", "opening".to_owned())]),
        WalletState::KeyMissing { problem, .. } | WalletState::Failed { problem } => {
            return (WhyCode::NoWallet, vec![("code", problem.code.clone())]);
        }
    }
    if let Some(problem) = &status.network_problem {
        return (WhyCode::Problem, vec![("code", problem.code.clone())]);
    }
    if status.network.is_none() {
        return plain(WhyCode::NoNetwork);
    }
    match &status.device {
        DeviceState::Ready { .. } => {}
        DeviceState::Opening => return (WhyCode::NoDevice, vec![("code", "opening".to_owned())]),
        DeviceState::Failed { problem } => return (WhyCode::NoDevice, vec![("code", problem.code.clone())]),
    }
    if let Some(pause) = status.pause {
        return (
            WhyCode::Paused,
            pause.until_unix_s.map(|until| ("until_unix_s", until.to_string())).into_iter().collect(),
        );
    }
    if !status.contributing {
        return plain(WhyCode::Paused);
    }
    match &status.worker_problem {
        Some(problem) if problem.code == UPDATE_REQUIRED => return plain(WhyCode::UpdateRequired),
        Some(problem) => return (WhyCode::Problem, vec![("code", problem.code.clone())]),
        None => {}
    }
    if let Some(hold) = &status.standing_by {
        let code = serde_json::to_value(hold.reason).ok().and_then(|value| value.as_str().map(str::to_owned));
        return (WhyCode::StandingBy, vec![("reason", code.unwrap_or_default()), ("detail", hold.detail.clone())]);
    }
    match &status.link {
        Link::Online => {}
        Link::NoHardware { reason } => {
            return (WhyCode::NoDevice, vec![("code", "lost".to_owned()), ("reason", reason.clone())]);
        }
        Link::Waiting { reason, .. } => {
            let trouble = beside.trouble.map(|trouble| ("code", trouble.code.to_owned()));
            return (WhyCode::Offline, [("reason", reason.clone())].into_iter().chain(trouble).collect());
        }
        // The last attempt has failed: one more is no news.
        Link::Connecting { .. } if beside.trouble.is_some() => {
            let trouble = beside.trouble.map(|trouble| ("code", trouble.code.to_owned()));
            return (WhyCode::Offline, trouble.into_iter().collect());
        }
        Link::Off | Link::Starting | Link::Connecting { .. } => return plain(WhyCode::Connecting),
    }
    if status.confirm_download.is_some() {
        return (WhyCode::Downloading, vec![("waits", "confirm".to_owned())]);
    }
    match &status.slice {
        Slice::Nothing => return plain(WhyCode::NoLease),
        Slice::Fetching { done_bytes, total_bytes } => {
            let percent = u128::from(*done_bytes) * 100 / u128::from((*total_bytes).max(1));
            return (WhyCode::Downloading, vec![("percent", percent.to_string())]);
        }
        Slice::Held { .. } => {}
    }
    let is_recent = |at: &Duration| at.saturating_add(RECENT) >= beside.now;
    match (beside.answered.filter(is_recent), beside.credited.filter(is_recent)) {
        (_, Some(_)) => plain(WhyCode::Earning),
        (Some(_), None) => plain(WhyCode::BeingChecked),
        (None, None) => plain(WhyCode::NoWork),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::facts::{ConfirmDownload, Pause, PauseKind, StandingBy};
    use crate::engine::status::{Network, Problem};
    use crate::worker::courtesy;

    const NOW: Duration = Duration::from_secs(1000);
    const LONG_AGO: Option<Duration> = Some(Duration::from_secs(900));
    const LATELY: Option<Duration> = Some(Duration::from_secs(990));

    fn problem(code: &str) -> Problem {
        Problem { code: code.into(), message: String::new() }
    }

    fn network() -> Network {
        Network { operator: "o".into(), gateways: Vec::new(), expires_unix_ms: 0 }
    }

    /// Everything is well and a slice is held.
    fn well() -> Status {
        let mut status =
            Status { contributing: true, network: Some(network()), link: Link::Online, ..Status::default() };
        status.wallet.state = WalletState::Ready { address: "a".into() };
        status.device = DeviceState::Ready { name: "d".into(), why: String::new() };
        status.slice = Slice::Held { experts: "0:0".into() };
        status
    }

    fn beside(answered: Option<Duration>, credited: Option<Duration>) -> Beside {
        Beside { now: NOW, answered, credited, trouble: None }
    }

    type Change = Box<dyn Fn(&mut Status)>;

    #[test]
    fn each_trouble_has_its_reason_and_the_first_to_mend_comes_first() {
        // In the order of precedence: each row's trouble hides those below it.
        let rows: Vec<(WhyCode, Change)> = vec![
            (
                WhyCode::NoWallet,
                Box::new(|s| s.wallet.state = WalletState::Failed { problem: problem("keyring_unavailable") }),
            ),
            (WhyCode::Problem, Box::new(|s| s.network_problem = Some(problem("network_damaged")))),
            (WhyCode::NoNetwork, Box::new(|s| s.network = None)),
            (WhyCode::NoDevice, Box::new(|s| s.device = DeviceState::Opening)),
            (WhyCode::Paused, Box::new(|s| s.pause = Some(Pause { kind: PauseKind::Hour, until_unix_s: Some(9) }))),
            (WhyCode::Paused, Box::new(|s| s.contributing = false)),
            (WhyCode::UpdateRequired, Box::new(|s| s.worker_problem = Some(problem(UPDATE_REQUIRED)))),
            (
                WhyCode::StandingBy,
                Box::new(|s| {
                    let detail = "game".into();
                    s.standing_by =
                        Some(StandingBy { reason: courtesy::Reason::ExclusiveApp, detail, until_unix_s: None });
                }),
            ),
            (WhyCode::Offline, Box::new(|s| s.link = Link::Waiting { reason: "no".into(), retry_ms: 1 })),
            (
                WhyCode::Downloading,
                Box::new(|s| {
                    s.confirm_download =
                        Some(ConfirmDownload { needed_bytes: 1, free_disk_bytes: 1, cap_bytes: 1, eta_s: None });
                }),
            ),
            (WhyCode::Downloading, Box::new(|s| s.slice = Slice::Fetching { done_bytes: 1, total_bytes: 2 })),
            (WhyCode::NoWork, Box::new(|_| {})),
        ];
        for (first, (code, _)) in rows.iter().enumerate() {
            let mut status = well();
            rows[first..].iter().rev().for_each(|(_, change)| change(&mut status));
            assert_eq!(why(&status, beside(None, None)).code, *code, "row {first}");
        }
        let mut without = well();
        without.slice = Slice::Nothing;
        assert_eq!(why(&without, beside(None, None)).code, WhyCode::NoLease);
        let dialling = Status { link: Link::Connecting { gateway: "g".into() }, ..well() };
        assert_eq!(why(&dialling, beside(None, None)).code, WhyCode::Connecting, "nothing has failed");
        let lost = Status { link: Link::NoHardware { reason: "unplugged".into() }, ..well() };
        assert_eq!(why(&lost, Beside::default()).args["reason"], "unplugged");
    }

    #[test]
    fn answers_without_credit_are_being_checked_and_credit_is_earning() {
        let at = |answered, credited| why(&well(), beside(answered, credited)).code;
        assert_eq!(at(None, None), WhyCode::NoWork);
        assert_eq!(at(LATELY, None), WhyCode::BeingChecked);
        assert_eq!(at(LATELY, LONG_AGO), WhyCode::BeingChecked);
        assert_eq!(at(LATELY, LATELY), WhyCode::Earning);
        assert_eq!(at(None, LATELY), WhyCode::Earning);
        assert_eq!(at(LONG_AGO, LONG_AGO), WhyCode::NoWork);
    }

    #[test]
    fn a_credit_is_new_when_it_comes_and_not_by_the_gateways_clock() {
        let account = |at| Account { last_credit_unix_ms: at, ..Account::default() };
        let (first, second, hour_ms) = (Duration::from_secs(1), Duration::from_secs(2), 3_600_000);
        let here = 1_800_000_000_000;
        for there in [here - hour_ms, here, here + hour_ms] {
            let mut credits = Credits::default();
            assert_eq!(credits.see(Some(&account(None)), first, here), None);
            assert_eq!(credits.see(Some(&account(Some(there))), first, here), Some(first));
            assert_eq!(credits.see(Some(&account(Some(there))), second, here), Some(first), "the same one");
            assert_eq!(credits.see(Some(&account(Some(there - 1))), second, here), Some(first), "an older one");
            assert_eq!(credits.see(Some(&account(Some(there + 1))), second, here), Some(second));
            assert_eq!(credits.see(None, second, here), None, "another account");
        }
        let mut credits = Credits::default();
        assert_eq!(credits.see(Some(&account(Some(here - hour_ms))), first, here), None, "from before the start");
        assert_eq!(credits.see(Some(&account(Some(here - hour_ms + 1))), second, here), Some(second));
    }

    #[test]
    fn a_status_that_says_nothing_has_a_reason_too() {
        assert_eq!(why(&Status::default(), Beside::default()).args["code"], "opening");
    }
}
