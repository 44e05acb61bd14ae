//! A good guest: it rests when its owner or their machine says so, at once, and gives back what it took.

use std::fs;

use kvasir::clock::Clock;
use kvasir::engine::{PauseKind, Settings, WhyCode};
use kvasir::worker::courtesy::{Reason, Rules};

use super::*;
use crate::support::clock::JumpingClock;

pub fn holds_slice(status: &Status) -> bool {
    matches!(status.slice, Slice::Held { .. })
}

/// The usual settings, but for these rules.
pub fn wishing(rules: Rules) -> Settings {
    Settings { rules, ..Settings::default() }
}

async fn contributing(desk: &Desk, network: &Network) {
    desk.ready().await;
    desk.join(&network.join_code().unwrap()).await;
    desk.engine.contribute(true).await.unwrap();
    desk.until("a slice", holds_slice).await;
}

/// Waits until the network has no worker any more: what a window shows may be ahead of it.
async fn gone(network: &Network) {
    let wait = async {
        while !network.dispatch.workers().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("the worker leaves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_outlives_a_restart_and_resume_ends_it() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::start(dir.path());
    contributing(&desk, &network).await;
    desk.engine.pause(PauseKind::Hour).await.unwrap();
    let status = desk.engine.status();
    let until = status.pause.unwrap().until_unix_s.unwrap();
    assert!(status.contributing && status.state == State::Paused && status.link == Link::Off);
    assert_eq!(status.why_not_earning.code, WhyCode::Paused);
    assert_eq!(status.why_not_earning.args["until_unix_s"], until.to_string());
    assert!(network.dispatch.workers().is_empty());
    desk.stop().await;

    let desk = Desk::start(dir.path());
    let status = desk.ready().await;
    assert_eq!(status.pause.unwrap().until_unix_s, Some(until));
    assert!(status.contributing && status.link == Link::Off);
    desk.engine.resume().await.unwrap();
    desk.until("a slice again", |s| holds_slice(s) && s.pause.is_none()).await;
    desk.engine.pause(PauseKind::UntilResumed).await.unwrap();
    desk.stop().await;
    // The hour of a file that a clock has stretched is an hour from now at most.
    let path = dir.path().join("intent.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"until_resumed\""), "{text}");
    let far =
        text.replace("\"until_resumed\"", "\"hour\"").replace("\"until_unix_s\": null", "\"until_unix_s\": 9999999999");
    fs::write(&path, far).unwrap();
    let desk = Desk::start(dir.path());
    let status = desk.ready().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(status.pause.unwrap().until_unix_s.unwrap() <= now + 3600);
    desk.stop().await;
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_wants_the_machine_gets_it_and_work_goes_on_afterwards() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::start(dir.path());
    contributing(&desk, &network).await;
    let settings = wishing(Rules { pause_for_apps: vec!["blender".into()], ..Rules::default() });
    desk.engine.save_settings(settings.clone()).await.unwrap();
    let program = dir.path().join("proc/4711");
    fs::create_dir_all(&program).unwrap();
    fs::write(program.join("comm"), "blender\n").unwrap();
    let held = desk.until("standing by", |s| s.standing_by.is_some() && s.link == Link::Off).await;
    let hold = held.standing_by.unwrap();
    assert_eq!((hold.reason, hold.detail.as_str()), (Reason::ExclusiveApp, "blender"));
    assert_eq!((held.state, held.why_not_earning.code), (State::Paused, WhyCode::StandingBy));
    assert!(held.contributing);
    gone(&network).await;
    fs::remove_dir_all(&program).unwrap();
    desk.until("a slice again", |s| holds_slice(s) && s.standing_by.is_none()).await;
    desk.stop().await;

    // Settings are kept; a damaged file is put aside and said to be.
    let desk = Desk::start(dir.path());
    assert_eq!(desk.ready().await.settings, settings);
    let refused = wishing(Rules { duty_percent: 101, ..Rules::default() });
    assert_eq!(desk.engine.save_settings(refused).await.unwrap_err().code(), "settings");
    desk.stop().await;
    fs::write(dir.path().join("settings.json"), "{").unwrap();
    let desk = Desk::start(dir.path());
    let status = desk.ready().await;
    assert_eq!(status.state_problem.unwrap().code, "state_damaged");
    assert_eq!(status.settings, Settings::default());
    assert_eq!(status.pause.map(|pause| pause.kind), Some(PauseKind::UntilResumed), "defaults are nobody's wish");
    assert!(dir.path().join("settings.json.bad").exists());
    desk.stop().await;
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_survives_a_start_with_a_wrong_clock_and_is_no_longer_than_an_hour() {
    const HOUR_MS: i64 = 3_600_000;
    let dir = tempfile::tempdir().unwrap();
    let intent = r#"{"version":1,"content":{"contributing":true,"pause":{"kind":"hour","until_unix_s":UNTIL}}}"#;
    let clock = Arc::new(JumpingClock::default());
    let until = clock.unix_ms() / 1000 + 1800;
    let text = intent.replace("UNTIL", &until.to_string());
    fs::write(dir.path().join("intent.json"), &text).unwrap();
    let start = || Desk::with(dir.path(), |config| config.clock = Arc::clone(&clock) as Arc<dyn Clock>);
    // The machine starts in 1970, and learns the time a little later.
    let ages = i64::try_from(clock.unix_ms()).unwrap();
    clock.jump(0, -ages);
    let desk = start();
    let left =
        |s: &Status, clock: &JumpingClock| s.pause.and_then(|p| p.until_unix_s).map(|u| u - clock.unix_ms() / 1000);
    let shown = left(&desk.ready().await, &clock).unwrap();
    assert!((3590..=3600).contains(&shown), "{shown}");
    clock.jump(1000, ages + 1000);
    let status = desk.until("the hour of before", |s| s.pause.is_some_and(|p| p.until_unix_s == Some(until))).await;
    assert!(status.contributing);
    clock.jump(HOUR_MS / 2, HOUR_MS / 2);
    desk.until("the end of the pause", |s| s.pause.is_none()).await;
    // Set back in the middle of a pause: it ends an hour after it began.
    desk.engine.pause(PauseKind::Hour).await.unwrap();
    clock.jump(HOUR_MS / 2, -10 * HOUR_MS);
    let half = |s: &Status| left(s, &clock).is_some_and(|left| (1700..=1800).contains(&left));
    desk.until("half an hour", half).await;
    clock.jump(HOUR_MS / 2, 0);
    desk.until("the end of the pause", |s| s.pause.is_none()).await;
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_state_directory_has_one_engine() {
    let dir = tempfile::tempdir().unwrap();
    let first = Desk::start(dir.path());
    first.ready().await;
    fs::write(dir.path().join("settings.json"), "{").unwrap();
    let second = Desk::start(dir.path());
    let status = second.until("a refusal", |s| s.state_problem.is_some()).await;
    assert_eq!(status.state_problem.unwrap().code, "state_in_use");
    assert_eq!(second.engine.contribute(true).await.unwrap_err().code(), "state_in_use");
    assert_eq!(second.engine.new_wallet().await.unwrap_err().code(), "state_in_use");
    assert!(dir.path().join("settings.json").exists(), "nothing is put aside under another one's hands");
    second.stop().await;
    first.engine.save_settings(Settings::default()).await.unwrap();
    first.stop().await;
    let third = Desk::start(dir.path());
    assert_eq!(third.ready().await.state_problem, None);
    third.stop().await;

    // What is no directory is not called another program.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let fourth = Desk::start(&file);
    let status = fourth.until("a refusal", |s| s.state_problem.is_some()).await;
    assert_eq!(status.state_problem.unwrap().code, "state_file");
    assert_eq!(fourth.engine.new_wallet().await.unwrap_err().code(), "state_file");
    fourth.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_switched_off_by_name_and_stays_off() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::start(dir.path());
    contributing(&desk, &network).await;
    let shown = |s: &Status| s.devices.iter().map(|d| (d.id.clone(), d.on, d.used)).collect::<Vec<_>>();
    let own = |id: &str, on, used| (id.to_owned(), on, used);
    assert_eq!(shown(&desk.engine.status()), [own("cpu", true, true), own("other", true, false)]);
    assert_eq!(desk.engine.switch_device("3".into(), false).await.unwrap_err().code(), "no_such_device");
    desk.engine.switch_device("other".into(), false).await.unwrap();
    desk.until("work goes on", |s| holds_slice(s) && shown(s)[1] == own("other", false, false)).await;
    desk.engine.switch_device("cpu".into(), false).await.unwrap();
    assert!(network.dispatch.workers().is_empty(), "it rests before the answer");
    let none = desk.until("no device", |s| matches!(s.device, DeviceState::Failed { .. })).await;
    assert_eq!((none.why_not_earning.code, none.contributing), (WhyCode::NoDevice, true));
    desk.stop().await;
    let desk = Desk::start(dir.path());
    desk.until("no device after a restart", |s| matches!(s.device, DeviceState::Failed { .. })).await;
    desk.engine.switch_device("cpu".into(), true).await.unwrap();
    desk.until("a slice again", holds_slice).await;
    desk.stop().await;
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_download_is_asked_about_once() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let careful = || Desk::with(dir.path(), |config| config.large_download_bytes = 1);
    let desk = careful();
    desk.ready().await;
    desk.join(&network.join_code().unwrap()).await;
    assert_eq!(desk.engine.confirm_download(true).await.unwrap_err().code(), "nothing_asked");
    desk.engine.contribute(true).await.unwrap();
    let asked = desk.until("a question", |s| s.confirm_download.is_some()).await;
    let question = asked.confirm_download.unwrap();
    assert!(question.needed_bytes > 1 && question.free_disk_bytes > 0 && question.cap_bytes > 0, "{question:?}");
    assert_eq!(asked.why_not_earning.code, WhyCode::Downloading);
    assert!(kept_bytes(dir.path()) < question.needed_bytes / 4, "nothing but the list of the experts is here");
    desk.engine.confirm_download(false).await.unwrap();
    let status = desk.engine.status();
    assert!(!status.contributing && status.confirm_download.is_none() && status.link == Link::Off);
    desk.engine.contribute(true).await.unwrap();
    desk.until("the question again", |s| s.confirm_download.is_some()).await;
    desk.engine.confirm_download(true).await.unwrap();
    let agreed = desk.until("a slice", |s| holds_slice(s) && s.confirm_download.is_none()).await;
    desk.stop().await;
    let experts = dir.path().join("experts");
    fs::remove_dir_all(&experts).unwrap();
    let desk = careful();
    desk.until("a slice without a question", holds_slice).await;
    desk.stop().await;
    // A yes to somebody else's experts is none to these.
    let path = dir.path().join("intent.json");
    let text = fs::read_to_string(&path).unwrap();
    let other = text.replace(&agreed.network.unwrap().operator, &PublicKey([1; 32]).to_string());
    assert!(other != text && text.contains("\"bytes\""), "{text}");
    fs::write(&path, other).unwrap();
    fs::remove_dir_all(&experts).unwrap();
    let desk = careful();
    desk.until("the question of another operator", |s| s.confirm_download.is_some()).await;
    desk.stop().await;
    network.stop().await.unwrap();
}

/// Bytes of the files with experts.
fn kept_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir.join("experts")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_days_add_up_to_the_account() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::start(dir.path());
    contributing(&desk, &network).await;
    generate(&network, 4).await;
    let nano = (network.dispatch.counts().work_bytes * 7).to_string();
    let credited = |s: &Status| {
        let account = s.account.as_ref();
        account.is_some_and(|a| a.pending_nano_kvr == nano && a.per_day.iter().map(|d| &d.nano).eq([&nano]))
    };
    let paid = desk.until("the credit and its day", credited).await;
    let account = paid.account.unwrap();
    assert_eq!(account.last_credit_unix_s, account.last_credit_unix_ms.map(|ms| ms / 1000));
    assert_eq!(desk.engine.status().why_not_earning.code, WhyCode::Earning);
    desk.stop().await;
    network.stop().await.unwrap();
}
