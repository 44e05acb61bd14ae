//! Every main state of the window, as a view of the engine, and what must be read in it.

use kvasir::engine::{
    Account, ConfirmDownload, DayEarned, Device, DeviceKind, DeviceState, Download, Leg, Legs, Link, Needs, Network,
    NewRelease, Pause, PauseKind, Problem, Slice, StandingBy, State, Status, Stored, Tray, View, WalletState,
    WalletStatus, Why, WhyCode,
};
use kvasir::worker::courtesy::{Hours, Reason};

/// A state of the window.
pub struct Shown {
    /// File name of its picture.
    pub name: &'static str,
    /// The page that shows it best.
    pub route: &'static str,
    pub view: View,
    /// Keys of sentences that must be read there.
    pub says: &'static [&'static str],
    /// What else must be read there, in English.
    pub reads: &'static [&'static str],
}

const ADDRESS: &str = "FVen3X669xLzsi6N2V91DoiyzHzg1uAgqiT8jZ9nS96Z";
const GATEWAY: &str = "wss://gateway.example.net";
/// 2026-12-01, 14:05 UTC.
const NOW_S: u64 = 1_796_133_900;

fn network() -> Network {
    let operator = "9hSR6S7WPtxmTojgo6GG3k4yDPecgJY292j7xrsUGWBu".to_owned();
    Network { operator, gateways: vec![GATEWAY.to_owned()], expires_unix_ms: (NOW_S + 3600) * 1000 }
}

fn wallet(state: WalletState, backed_up: bool, stored: Stored, needs: Option<Needs>) -> WalletStatus {
    WalletStatus { state, backed_up, has_phrase: true, stored, needs }
}

/// A wallet whose key is not where it was.
fn missing() -> WalletStatus {
    let problem = problem("key_missing", "expected the key of the wallet in the keyring, got none");
    let state = WalletState::KeyMissing { address: ADDRESS.to_owned(), problem };
    wallet(state, false, Stored::None, Some(Needs::Restore))
}

fn device(id: &str, name: &str, kind: DeviceKind, used: bool, why: Option<&str>) -> Device {
    let memory_bytes = if kind == DeviceKind::Gpu { 24 << 30 } else { 0 };
    Device { id: id.to_owned(), name: name.to_owned(), kind, on: true, used, why: why.map(str::to_owned), memory_bytes }
}

fn account() -> Account {
    let per_day = (1..=12u64)
        .map(|day| DayEarned {
            day: format!("2026-11-{:02}", 18 + day),
            nano: (day * 731_204_511 % 5_000_000_000).to_string(),
        })
        .collect();
    Account {
        pending_nano_kvr: "18245664021".to_owned(),
        pending_kvr: "18.24566".to_owned(),
        last_credit_unix_ms: Some((NOW_S - 90) * 1000),
        last_credit_unix_s: Some(NOW_S - 90),
        per_day,
        asked_unix_ms: NOW_S * 1000,
    }
}

fn problem(code: &str, message: &str) -> Problem {
    Problem { code: code.to_owned(), message: message.to_owned() }
}

/// A worker that earns.
fn working() -> Status {
    Status {
        state: State::Working,
        contributing: true,
        why_not_earning: Why { code: WhyCode::Earning, ..Why::default() },
        wallet: wallet(WalletState::Ready { address: ADDRESS.to_owned() }, true, Stored::Keyring, None),
        device: DeviceState::Ready { name: "NVIDIA GeForce RTX 4090".to_owned(), why: String::new() },
        devices: vec![
            device("gpu-1", "NVIDIA GeForce RTX 4090", DeviceKind::Gpu, true, None),
            device("cpu", "AMD Ryzen 9 7950X", DeviceKind::Cpu, false, Some("the graphics card is 41 times as fast")),
        ],
        network: Some(network()),
        link: Link::Online,
        legs: Legs {
            gateway_rtt_ms: Some(14),
            backbone_rtt_ms: Some(19),
            gateway: Leg::Up,
            hub: Leg::Up,
            backbone: Leg::Up,
        },
        slice: Slice::Held { experts: "0:0-15,1:0-15".to_owned() },
        assignments: 184_201,
        account: Some(account()),
        ..Status::default()
    }
}

fn with(name: &'static str, says: &'static [&'static str], change: impl FnOnce(&mut View)) -> Shown {
    on("home", name, says, change)
}

fn on(route: &'static str, name: &'static str, says: &'static [&'static str], change: impl FnOnce(&mut View)) -> Shown {
    let (version, starts_at_login) = ("1.0.0".to_owned(), Some(false));
    let mut view = View { engine: working(), version, starts_at_login, sees_fullscreen: true, ..View::default() };
    change(&mut view);
    Shown { name, route, view, says, reads: &[] }
}

fn why(view: &mut View, state: State, code: WhyCode) {
    view.engine.state = state;
    view.engine.why_not_earning = Why { code, ..Why::default() };
}

fn unlinked(view: &mut View) {
    let status = &mut view.engine;
    // The gateway still answers for the account.
    let legs = Legs { gateway: Leg::Up, ..Legs::default() };
    (status.link, status.slice, status.legs) = (Link::Off, Slice::Nothing, legs);
}

/// Without an open wallet there is no link, and nobody's account to ask for.
fn closed(view: &mut View, wallet: WalletStatus) {
    unlinked(view);
    why(view, State::Error, WhyCode::NoWallet);
    view.engine.wallet = wallet;
    (view.engine.account, view.engine.legs) = (None, Legs::default());
}

/// All of them.
pub fn all() -> Vec<Shown> {
    [everyday(), troubles(), pages()].into_iter().flatten().collect()
}

fn everyday() -> Vec<Shown> {
    let mut working = with("working", &["state.working", "why.earning", "stop", "pause.hour", "leg.up"], |_| {});
    working.reads = &["18.24566", "NVIDIA GeForce RTX 4090", "41 times", "14 ms", "184,201"];
    vec![
        working,
        with("first-start", &["state.paused", "why.no_network", "join.title", "nav.badge"], |view| {
            unlinked(view);
            why(view, State::Paused, WhyCode::NoNetwork);
            let status = &mut view.engine;
            (status.contributing, status.network, status.account, status.assignments) = (false, None, None, 0);
            status.wallet.backed_up = false;
            status.legs = Legs::default();
        }),
        with("invitation", &["offer.title", "offer.yes"], |view| {
            unlinked(view);
            why(view, State::Paused, WhyCode::NoNetwork);
            (view.engine.offer, view.engine.network) = (Some(network()), None);
            (view.engine.contributing, view.engine.account, view.engine.legs) = (false, None, Legs::default());
        }),
        with("ready", &["why.not_started", "contribute"], |view| {
            unlinked(view);
            why(view, State::Paused, WhyCode::Paused);
            view.engine.contributing = false;
        }),
        with("confirm-download", &["download.title", "download.yes", "download.no", "why.confirm_download"], |view| {
            why(view, State::Idle, WhyCode::Downloading);
            view.engine.why_not_earning.args.insert("waits".to_owned(), "confirm".to_owned());
            (view.engine.slice, view.engine.legs.backbone) = (Slice::Nothing, Leg::Connecting);
            view.engine.confirm_download = Some(ConfirmDownload {
                needed_bytes: 12_400_000_000,
                free_disk_bytes: 180_000_000_000,
                cap_bytes: 53_000_000_000,
                eta_s: Some(1500),
            });
        }),
        with("downloading", &["state.working", "why.downloading"], |view| {
            why(view, State::Working, WhyCode::Downloading);
            let (done_bytes, total_bytes) = (3_100_000_000, 12_400_000_000);
            view.engine.slice = Slice::Fetching { done_bytes, total_bytes };
            view.engine.download = Some(Download {
                needed_bytes: total_bytes,
                done_bytes,
                free_disk_bytes: 180_000_000_000,
                cap_bytes: 53_000_000_000,
                bytes_per_s: 8_300_000,
                eta_s: Some(1120),
            });
        }),
        with("paused", &["state.paused", "why.paused", "resume"], |view| {
            unlinked(view);
            why(view, State::Paused, WhyCode::Paused);
            view.engine.pause = Some(Pause { kind: PauseKind::UntilResumed, until_unix_s: None });
        }),
        with("paused-hour", &["state.paused", "resume"], |view| {
            unlinked(view);
            why(view, State::Paused, WhyCode::Paused);
            view.engine.pause = Some(Pause { kind: PauseKind::Hour, until_unix_s: Some(NOW_S + 1800) });
        }),
        with("standing-by", &["state.paused"], |view| {
            unlinked(view);
            why(view, State::Paused, WhyCode::StandingBy);
            let detail = "blender".to_owned();
            view.engine.standing_by = Some(StandingBy { reason: Reason::ExclusiveApp, detail, until_unix_s: None });
        }),
        with("no-work", &["why.no_work"], |view| why(view, State::Working, WhyCode::NoWork)),
        with("release", &["release.install"], |view| {
            view.new_release = NewRelease::Found { version: "1.1.0".to_owned() };
        }),
    ]
}

fn troubles() -> Vec<Shown> {
    vec![
        with("offline", &["state.offline", "why.offline", "leg.down"], |view| {
            unlinked(view);
            why(view, State::Offline, WhyCode::Offline);
            view.engine.link =
                Link::Waiting { reason: "connection refused by 192.0.2.7:443".to_owned(), retry_ms: 4000 };
            view.engine.legs = Legs { gateway: Leg::Down, hub: Leg::Down, backbone: Leg::Down, ..Legs::default() };
            view.engine.account_problem = Some(problem("gateway_unreachable", "no answer within 10 s"));
        }),
        with("key-missing", &["state.error", "why.no_wallet", "recovery.missing.title", "recovery.link"], |view| {
            closed(view, missing());
            view.engine.contributing = false;
        }),
        with("no-keyring", &["state.error", "why.no_wallet", "recovery.failed.title"], |view| {
            let silent = problem("keyring_unavailable", "no Secret Service on the session bus");
            let state = WalletState::Failed { problem: silent };
            closed(view, wallet(state, false, Stored::None, Some(Needs::Password)));
            view.engine.contributing = false;
        }),
        Shown {
            reads: &["NVIDIA GeForce RTX 4090 does not answer any more", "no card shows"],
            ..with("gpu-lost", &["state.offline", "device.lost"], |view| {
                unlinked(view);
                why(view, State::Offline, WhyCode::NoDevice);
                view.engine.why_not_earning.args.insert("code".to_owned(), "lost".to_owned());
                view.engine.link = Link::NoHardware { reason: "expected a GPU, got none: no card shows".to_owned() };
            })
        },
        with("no-device", &["state.error", "why.no_device", "device.none"], |view| {
            unlinked(view);
            why(view, State::Error, WhyCode::NoDevice);
            view.engine.contributing = false;
            view.engine.devices.clear();
            view.engine.device = DeviceState::Failed { problem: problem("device", "no Vulkan driver was found") };
        }),
        with("update", &["state.error", "why.update_required", "problem.update_required"], |view| {
            why(view, State::Error, WhyCode::UpdateRequired);
            view.engine.worker_problem = Some(problem("update_required", "expected a newer program than 1.0.0"));
        }),
        with("release-unknown", &["problem.release_unreachable", "release.look"], |view| {
            let silent = problem("release_unreachable", "releases: releases.example does not answer: nothing in 30s");
            view.new_release = NewRelease::Unknown { problem: silent };
        }),
        with("release-kept", &["problem.release_install", "release.install", "release.look"], |view| {
            let how = "expected pkexec or sudo to install the package, got: Authentication failed or was cancelled; it \
                       is what was signed, and was kept: sudo apt install \
                       '/home/somebody/.local/share/net.kvasir.app/release/kvasir-1.1.0.deb'";
            let problem = problem("release_install", how);
            view.new_release = NewRelease::Failed { version: "1.1.0".to_owned(), problem };
        }),
        with("no-tray", &["tray.no_host"], |view| view.tray = Tray::NoHost),
    ]
}

fn pages() -> Vec<Shown> {
    vec![
        on("settings", "settings", &["set.duty", "set.vram", "set.metered", "remove", "set.login"], |view| {
            view.engine.settings.rules.schedule = vec![Hours { days: 0b001_1111, from_min: 1320, to_min: 480 }];
            view.engine.settings.rules.pause_for_apps = vec!["blender".to_owned()];
        }),
        on("settings", "settings-wayland", &["set.fullscreen.unseen"], |view| view.sees_fullscreen = false),
        on("wallet", "wallet", &["address.copy", "phrase.safe", "claim.yes", "stored.keyring"], |_| {}),
        on("wallet", "wallet-unsaved", &["phrase.unsafe", "phrase.show"], |view| view.engine.wallet.backed_up = false),
        on("wallet", "wallet-locked", &["recovery.locked.title", "unlock.yes"], |view| {
            let state =
                WalletState::Failed { problem: problem("wallet_locked", "the wallet's file wants its password") };
            closed(view, wallet(state, false, Stored::PasswordFile, Some(Needs::Password)));
        }),
        on("wallet", "wallet-restore", &["recovery.missing.title", "restore.phrase", "fresh"], |view| {
            closed(view, missing());
        }),
        on("diagnostics", "diagnostics", &["doctor.body", "doctor.run"], |_| {}),
        with("closing", &["closing.title", "closing.yes"], |view| view.is_closing = true),
    ]
}
