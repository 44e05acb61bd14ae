//! What the owner of the machine has chosen, as windows show and change it.

use serde::{Deserialize, Serialize};

use super::kept::Kept;
use crate::net::https;
use crate::worker::courtesy::{Hours, Rules};

/// The file.
pub(super) const SETTINGS: Kept = Kept { name: "settings.json", what: "settings" };
/// Least duty cycle beside none at all: with less, no request would be answered in time.
const DUTY_PERCENT_MIN: u8 = 5;
/// Least disk for slices, and least memory: a few experts.
const CAP_BYTES_MIN: u64 = 64 << 20;
/// Entries of each list.
const ENTRIES_MAX: usize = 64;
/// Longest gateway or program.
const ENTRY_CHARS_MAX: usize = 256;

/// Disk that slices may take unless told otherwise.
pub const DISK_CAP_BYTES: u64 = 50 << 30;

/// The languages of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// The desktop's.
    #[default]
    Auto,
    /// English.
    En,
    /// Spanish.
    Es,
    /// French.
    Fr,
    /// Japanese.
    Ja,
    /// Korean.
    Ko,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Gateways to dial in place of those of the join code; none = those.
    pub gateways: Vec<String>,
    /// Most bytes of the device's memory; `null` = what it has room for.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub vram_cap_bytes: Option<u64>,
    /// Most bytes of the disk that slices may take.
    #[cfg_attr(test, ts(type = "number"))]
    pub disk_cap_bytes: u64,
    /// Part of the time that may be computed, 0–100.
    pub duty_percent: u8,
    /// Hours in which work is welcome; none = always.
    pub schedule: Vec<Hours>,
    /// Whether to work on battery.
    pub on_battery: bool,
    /// Whether to work on a metered connection.
    pub on_metered: bool,
    /// Whether to work only while nobody is at the machine.
    pub only_when_idle: bool,
    /// Names of programs that want the machine for themselves.
    pub pause_for_apps: Vec<String>,
    /// Whether a program that fills the screen is one of them.
    pub pause_for_fullscreen: bool,
    /// Whether the desktop may be told of things.
    pub notifications: bool,
    /// The window's language.
    pub language: Language,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gateways: Vec::new(),
            vram_cap_bytes: None,
            disk_cap_bytes: DISK_CAP_BYTES,
            duty_percent: 100,
            schedule: Vec::new(),
            on_battery: false,
            on_metered: false,
            only_when_idle: false,
            pause_for_apps: Vec::new(),
            pause_for_fullscreen: false,
            notifications: true,
            language: Language::Auto,
        }
    }
}

/// Settings that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, got {got}")]
pub struct SettingsError {
    /// Which.
    pub what: &'static str,
    /// What would do.
    pub expected: String,
    /// What was given.
    pub got: String,
}

impl Settings {
    /// Whether they make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), SettingsError> {
        let sane = |holds: bool, what, expected: &str, got: &dyn ToString| {
            let error = || SettingsError { what, expected: expected.to_owned(), got: got.to_string() };
            if holds { Ok(()) } else { Err(error()) }
        };
        let lists = self.gateways.len().max(self.schedule.len()).max(self.pause_for_apps.len());
        sane(lists <= ENTRIES_MAX, "lists", "at most 64 entries", &lists)?;
        for entry in self.gateways.iter().chain(&self.pause_for_apps) {
            let chars = entry.chars().count();
            sane(chars <= ENTRY_CHARS_MAX, "an entry", "at most 256 characters", &chars)?;
        }
        for url in &self.gateways {
            sane(https::public_of(url).is_some(), "gateways", "wss://host[:port]", url)?;
        }
        let duty = self.duty_percent;
        sane(duty == 0 || (DUTY_PERCENT_MIN..=100).contains(&duty), "duty cycle", "0, or 5 to 100 percent", &duty)?;
        for cap in [Some(self.disk_cap_bytes), self.vram_cap_bytes].into_iter().flatten() {
            sane(cap >= CAP_BYTES_MIN, "caps", "at least 64 MiB", &cap)?;
        }
        let is_sound = |hours: &Hours| hours.is_sound();
        sane(self.schedule.iter().all(is_sound), "schedule", "days 0–127, minutes of a day", &self.schedule.len())
    }

    /// The part that courtesy goes by.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            duty_percent: self.duty_percent,
            schedule: self.schedule.clone(),
            on_battery: self.on_battery,
            on_metered: self.on_metered,
            only_when_idle: self.only_when_idle,
            pause_for_apps: self.pause_for_apps.clone(),
            pause_for_fullscreen: self.pause_for_fullscreen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().err().map(|error| error.what)
        };
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|s| s.duty_percent = 0), None);
        assert_eq!(refused(|s| s.duty_percent = 4), Some("duty cycle"));
        assert_eq!(refused(|s| s.duty_percent = 101), Some("duty cycle"));
        assert_eq!(refused(|s| s.gateways = vec!["http://x".into()]), Some("gateways"));
        assert_eq!(refused(|s| s.gateways = vec!["wss://x".into()]), None);
        assert_eq!(refused(|s| s.vram_cap_bytes = Some(1)), Some("caps"));
        assert_eq!(refused(|s| s.disk_cap_bytes = 0), Some("caps"));
        let hours = |days, from_min, to_min| Hours { days, from_min, to_min };
        assert!(hours(127, 0, 1440).is_sound() && !hours(128, 0, 1).is_sound() && !hours(1, 1440, 0).is_sound());
        assert_eq!(refused(|s| s.schedule = vec![Hours { days: 1, from_min: 0, to_min: 1441 }]), Some("schedule"));
        assert_eq!(refused(|s| s.pause_for_apps = vec![String::new(); 65]), Some("lists"));
        assert_eq!(refused(|s| s.pause_for_apps = vec!["é".repeat(257)]), Some("an entry"));
    }
}
