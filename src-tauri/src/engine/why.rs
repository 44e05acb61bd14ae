//! "Why am I not earning?": the one reason, from the status and the time of the last answer.
//!
//! The reasons are asked in the order in which they must be mended: without a wallet a network is of no use, and
//! without a link a slice is not.

use std::collections::BTreeMap;

use super::facts::{Why, WhyCode};
use super::status::{DeviceState, Link, Slice, Status, WalletState};
use crate::wire::control::UPDATE_REQUIRED;
use crate::worker::Trouble;

/// An answer or a credit that is older says nothing about now.
pub(super) const RECENT_MS: u64 = 60_000;

/// What the status does not show; times in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    pub now: u64,
    /// When the worker last answered anything.
    pub answered: Option<u64>,
    /// Where the way to the hub fails.
    pub trouble: Option<Trouble>,
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
        Link::Off | Link::Starting | Link::Connecting { .. } => return plain(WhyCode::Offline),
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
    let is_recent = |at: u64| at.saturating_add(RECENT_MS) >= beside.now;
    let credited = status.account.as_ref().and_then(|account| account.last_credit_unix_ms);
    match (beside.answered.filter(|at| is_recent(*at)), credited.filter(|at| is_recent(*at))) {
        (_, Some(_)) => plain(WhyCode::Earning),
        (Some(_), None) => plain(WhyCode::BeingChecked),
        (None, None) => plain(WhyCode::NoWork),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::facts::{ConfirmDownload, Pause, PauseKind, StandingBy};
    use crate::engine::status::{Account, Network, Problem};
    use crate::worker::courtesy;

    const NOW: u64 = 1_800_000_000_000;

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

    fn credited(at: u64) -> Option<Account> {
        Some(Account { last_credit_unix_ms: Some(at), ..Account::default() })
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
            assert_eq!(why(&status, Beside { now: NOW, answered: None, trouble: None }).code, *code, "row {first}");
        }
        let mut without = well();
        without.slice = Slice::Nothing;
        assert_eq!(why(&without, Beside { now: NOW, answered: None, trouble: None }).code, WhyCode::NoLease);
        let lost = Status { link: Link::NoHardware { reason: "unplugged".into() }, ..well() };
        assert_eq!(why(&lost, Beside::default()).args["reason"], "unplugged");
    }

    #[test]
    fn answers_without_credit_are_being_checked_and_credit_is_earning() {
        let at =
            |answered, account| why(&Status { account, ..well() }, Beside { now: NOW, answered, trouble: None }).code;
        assert_eq!(at(None, None), WhyCode::NoWork);
        assert_eq!(at(Some(NOW - 1000), None), WhyCode::BeingChecked);
        assert_eq!(at(Some(NOW - 1000), credited(NOW - 2 * RECENT_MS)), WhyCode::BeingChecked);
        assert_eq!(at(Some(NOW - 1000), credited(NOW - 3000)), WhyCode::Earning);
        assert_eq!(at(None, credited(NOW - 3000)), WhyCode::Earning);
        assert_eq!(at(Some(NOW - 2 * RECENT_MS), credited(NOW - 2 * RECENT_MS)), WhyCode::NoWork);
    }

    #[test]
    fn a_status_that_says_nothing_has_a_reason_too() {
        assert_eq!(why(&Status::default(), Beside::default()).args["code"], "opening");
    }
}
