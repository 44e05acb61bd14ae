//! Reads what the machine is doing, from the kernel's files and, where there are some, a desktop's services.
//!
//! Linux tells through `/sys` and `/proc`, a desktop through logind, NetworkManager and its display. Elsewhere, and
//! where nobody answers, a fact stays unknown.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use jiff::ZonedDateTime;

#[cfg(all(target_os = "linux", feature = "desktop"))]
use super::display;
use super::{Facts, Rules};
use crate::clock::Clock;

/// Longest file that is read for a fact.
const FILE_BYTES_MAX: u64 = 4096;
/// Programs that are looked at; a machine with more is no desktop.
const PROGRAMS_MAX: usize = 8192;

/// Where facts are read from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The kernel's files on hardware: `/sys`.
    pub sys: PathBuf,
    /// The kernel's files on programs: `/proc`.
    pub proc: PathBuf,
    /// Whether the system's bus and the display are asked.
    pub services: bool,
}

/// What the kernel's files say.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    on_battery: Option<bool>,
    programs: Vec<String>,
}

/// What services say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    metered: Option<bool>,
    idle: Option<bool>,
    fullscreen: Option<bool>,
}

impl Default for Sources {
    /// This machine's.
    fn default() -> Self {
        Self { sys: PathBuf::from("/sys"), proc: PathBuf::from("/proc"), services: true }
    }
}

impl Sources {
    /// What the files say that `rules` mind; nothing else is read. Blocks.
    pub(super) fn look(&self, rules: &Rules) -> Files {
        Files {
            on_battery: if rules.on_battery { None } else { on_battery(&self.sys) },
            programs: if rules.pause_for_apps.is_empty() { Vec::new() } else { programs(&self.proc) },
        }
    }

    /// What the services say that `rules` mind; nobody else is asked. Blocks, and may hang.
    pub(super) fn ask(&self, rules: &Rules) -> Told {
        let asks = |minds: bool, answer: fn() -> Option<bool>| if self.services && minds { answer() } else { None };
        Told {
            metered: asks(!rules.on_metered, bus::metered),
            idle: asks(rules.only_when_idle, bus::idle),
            fullscreen: asks(rules.pause_for_fullscreen, display::fullscreen),
        }
    }
}

impl Facts {
    /// What the machine does now, as far as `rules` mind. Blocks, and may hang.
    #[must_use]
    pub fn now(sources: &Sources, rules: &Rules, clock: &dyn Clock) -> Self {
        Self::of(clock, sources.look(rules), sources.ask(rules))
    }

    /// Puts together what was learnt.
    pub(super) fn of(clock: &dyn Clock, files: Files, told: Told) -> Self {
        let Files { on_battery, programs } = files;
        let Told { metered, idle, fullscreen } = told;
        Self { now: local_time(clock), on_battery, metered, idle, programs, fullscreen }
    }
}

/// Whether every program that fills the screen can be seen: on Wayland only those of X11 can, elsewhere none.
#[must_use]
pub fn sees_fullscreen() -> bool {
    let has = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(all(target_os = "linux", feature = "desktop")) && has("DISPLAY") && !has("WAYLAND_DISPLAY")
}

fn local_time(clock: &dyn Clock) -> ZonedDateTime {
    let unix_ms = i64::try_from(clock.unix_ms()).unwrap_or(i64::MAX);
    let now = jiff::Timestamp::from_millisecond(unix_ms).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    now.to_zoned_datetime(jiff::tz::TimeZone::system())
}

/// A small file's text.
fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    // A long line may be cut within a letter, and names need not be text at all.
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Whether a battery of the machine itself empties and nothing feeds it.
fn on_battery(sys: &Path) -> Option<bool> {
    let supplies = fs::read_dir(sys.join("class/power_supply")).ok()?;
    let (mut fed, mut emptying) = (None, None);
    for supply in supplies.flatten().map(|entry| entry.path()) {
        // A mouse has a battery too.
        if text(&supply.join("scope")).is_some_and(|scope| scope == "Device") {
            continue;
        }
        match text(&supply.join("type")).as_deref() {
            Some("Battery") => match text(&supply.join("status")).as_deref() {
                Some("Discharging") => emptying = Some(true),
                Some("Charging" | "Full" | "Not charging") => emptying = emptying.or(Some(false)),
                _ => {}
            },
            Some(_) => match text(&supply.join("online")).as_deref() {
                Some("0") => fed = fed.or(Some(false)),
                Some(_) => fed = Some(true),
                None => {}
            },
            None => {}
        }
    }
    match (emptying, fed) {
        (_, Some(true)) => Some(false),
        (Some(emptying), _) => Some(emptying),
        // Without a battery there is nothing to run on but mains.
        (None, _) => None,
    }
}

/// Names of all programs: what the kernel calls them, and the file name of what was started, which may be longer.
fn programs(proc: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten().take(PROGRAMS_MAX) {
        if !entry.file_name().to_string_lossy().bytes().all(|c| c.is_ascii_digit()) {
            continue;
        }
        names.extend(text(&entry.path().join("comm")));
        let line = text(&entry.path().join("cmdline")).unwrap_or_default();
        let started = line.split('\0').next().unwrap_or_default();
        // Programs for Windows have paths of Windows.
        names.extend(started.rsplit(['/', '\\']).next().filter(|name| !name.is_empty()).map(str::to_owned));
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(all(target_os = "linux", feature = "desktop"))]
mod bus {
    //! The system's bus. A service that is not there is not started for our sake.

    use std::time::Duration;

    use zbus::blocking::connection::Builder;
    use zbus::blocking::{Connection, Proxy};
    use zbus::proxy::CacheProperties;
    use zbus::zvariant::OwnedValue;

    /// Longest wait for an answer.
    const PATIENCE: Duration = Duration::from_secs(2);

    fn property(service: &'static str, path: &'static str, interface: &'static str, name: &str) -> Option<OwnedValue> {
        let bus: Connection = Builder::system().ok()?.method_timeout(PATIENCE).build().ok()?;
        let proxy: Proxy<'_> = zbus::blocking::proxy::Builder::new(&bus)
            .destination(service)
            .ok()?
            .path(path)
            .ok()?
            .interface(interface)
            .ok()?
            .cache_properties(CacheProperties::No)
            .build()
            .ok()?;
        proxy.get_property::<OwnedValue>(name).ok()
    }

    /// NetworkManager's word on the connection in use.
    pub fn metered() -> Option<bool> {
        const SERVICE: &str = "org.freedesktop.NetworkManager";
        let value = property(SERVICE, "/org/freedesktop/NetworkManager", SERVICE, "Metered")?;
        // NMMetered: yes, no, guess yes, guess no.
        match u32::try_from(value).ok()? {
            1 | 3 => Some(true),
            2 | 4 => Some(false),
            _ => None,
        }
    }

    /// logind's word on whether somebody is at the session.
    pub fn idle() -> Option<bool> {
        const SERVICE: &str = "org.freedesktop.login1";
        let path = "/org/freedesktop/login1/session/auto";
        let value = property(SERVICE, path, "org.freedesktop.login1.Session", "IdleHint")?;
        bool::try_from(value).ok()
    }
}

#[cfg(not(all(target_os = "linux", feature = "desktop")))]
mod bus {
    //! Nobody to ask.

    pub fn metered() -> Option<bool> {
        None
    }

    pub fn idle() -> Option<bool> {
        None
    }
}

#[cfg(not(all(target_os = "linux", feature = "desktop")))]
mod display {
    //! Nobody to ask.

    pub fn fullscreen() -> Option<bool> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn a_battery_counts_when_it_is_the_machines_and_empties() {
        let told = |files: &[(&str, &str)]| {
            let sys = tempfile::tempdir().unwrap();
            write(sys.path(), files);
            on_battery(sys.path())
        };
        let battery = |status: &'static str| {
            [("class/power_supply/BAT0/type", "Battery\n"), ("class/power_supply/BAT0/status", status)]
        };
        let mains = |online: &'static str| {
            [("class/power_supply/AC/type", "Mains\n"), ("class/power_supply/AC/online", online)]
        };
        assert_eq!(told(&[]), None, "no such directory");
        assert_eq!(told(&mains("1\n")), Some(false));
        assert_eq!(told(&mains("0\n")), None, "a desktop whose supply says nothing runs on mains all the same");
        assert_eq!(told(&battery("Discharging\n")), Some(true));
        assert_eq!(told(&battery("Full\n")), Some(false));
        assert_eq!(told(&battery("Unknown\n")), None);
        assert_eq!(told(&[battery("Discharging\n"), mains("1\n")].concat()), Some(false));
        assert_eq!(told(&[battery("Discharging\n"), mains("0\n")].concat()), Some(true));
        let mouse = [&battery("Discharging\n")[..], &[("class/power_supply/BAT0/scope", "Device\n")]].concat();
        assert_eq!(told(&mouse), None, "a mouse");
    }

    #[test]
    fn programs_are_known_by_both_their_names() {
        let proc = tempfile::tempdir().unwrap();
        write(
            proc.path(),
            &[
                ("12/comm", "a-name-cut-at-f\n"),
                ("12/cmdline", "/opt/x/a-name-cut-at-fifteen\0--flag\0"),
                ("13/comm", "wine64\n"),
                ("13/cmdline", "C:\\Games\\Game.exe\0"),
                ("14/comm", "kworker\n"),
                ("14/cmdline", ""),
                ("15/cmdline", &format!("/opt/long-line\0{}", "\u{e9}".repeat(FILE_BYTES_MAX as usize))),
                ("self/comm", "not-a-number\n"),
            ],
        );
        let expected = ["Game.exe", "a-name-cut-at-f", "a-name-cut-at-fifteen", "kworker", "long-line", "wine64"];
        assert_eq!(programs(proc.path()), expected);
    }

    #[test]
    fn this_machine_is_looked_at_without_harm_and_only_for_what_a_rule_minds() {
        let clock = SystemClock::default();
        let mut rules = Rules { on_battery: true, on_metered: true, ..Rules::default() };
        let look = |rules: &Rules| Facts::now(&Sources::default(), rules, &clock);
        let facts = look(&rules);
        assert_eq!((facts.on_battery, facts.metered, facts.idle, facts.programs.len()), (None, None, None, 0));
        rules.pause_for_apps = vec!["x".into()];
        let facts = look(&rules);
        assert!(!cfg!(target_os = "linux") || !facts.programs.is_empty());
        assert!((facts.now.timestamp().as_millisecond() - clock.unix_ms() as i64).abs() < 60_000);
    }
}
