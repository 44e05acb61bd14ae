//! What the owner of a machine wishes of a worker on it: hours, power, programs that come first, part of the time.
//!
//! The app's settings, `kvasir.toml` and the command line say it in these words; `worker/courtesy` goes by them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Least duty cycle beside none at all: with less, no request would be answered in time.
const DUTY_PERCENT_MIN: u8 = 5;
/// Entries of each list.
pub const ENTRIES_MAX: usize = 64;
/// Longest entry, such as a program's name.
pub const ENTRY_CHARS_MAX: usize = 256;
/// Minutes of a day.
const DAY_MIN: u16 = 24 * 60;
/// Days as they are typed, Monday first.
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Some hours of some days of the week, by the machine's local time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(deny_unknown_fields)]
pub struct Hours {
    /// Days on which they begin: Monday is 1, Tuesday 2, Wednesday 4, …, Sunday 64.
    pub days: u8,
    /// First minute of the day, 0–1439.
    pub from_min: u16,
    /// The minute after the last, 0–1440; not after `from_min` means that they end on the next day.
    pub to_min: u16,
}

impl Hours {
    /// Whether there are such days and minutes.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.days < 128 && self.from_min < DAY_MIN && self.to_min <= DAY_MIN
    }
}

/// A text that names no hours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected days and hours such as mon-fri,sun@22:00-07:30, got {got:?}")]
pub struct HoursTextError {
    /// What was given, cut to 64 characters.
    pub got: String,
}

impl FromStr for Hours {
    type Err = HoursTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hours = || {
            let (days, hours) = text.split_once('@')?;
            let (from, to) = hours.split_once('-')?;
            let days = days.split(',').map(days_of).try_fold(0, |all, some| Some(all | some?))?;
            Some(Self { days, from_min: minute_of(from)?, to_min: minute_of(to)? }).filter(Self::is_sound)
        };
        hours().ok_or_else(|| HoursTextError { got: text.chars().take(64).collect() })
    }
}

/// The bits of `mon` or `fri-mon`.
fn days_of(text: &str) -> Option<u8> {
    let day = |name: &str| DAYS.iter().position(|day| name.trim().eq_ignore_ascii_case(day));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (day(first)?, day(last)?);
    let days = (last + DAYS.len() - first) % DAYS.len();
    Some((0..=days).fold(0, |bits, after| bits | 1 << ((first + after) % DAYS.len())))
}

/// The minute of the day at `7:30` or `24:00`.
fn minute_of(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    let number = |digits: &str| digits.bytes().all(|c| c.is_ascii_digit()).then(|| digits.parse::<u16>().ok())?;
    let (hour, minute) = (number(hour).filter(|hour| *hour <= 24)?, number(minute).filter(|minute| *minute < 60)?);
    Some(hour * 60 + minute).filter(|of_day| *of_day <= DAY_MIN)
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days: Vec<&str> =
            (0..).zip(DAYS).filter(|(bit, _)| self.days >> bit & 1 == 1).map(|(_, day)| day).collect();
        let [from, to] = [self.from_min, self.to_min].map(|min| format!("{:02}:{:02}", min / 60, min % 60));
        write!(f, "{}@{from}-{to}", days.join(","))
    }
}

/// What the owner of a machine wishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(default)]
pub struct Rules {
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
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            duty_percent: 100,
            schedule: Vec::new(),
            on_battery: false,
            on_metered: false,
            only_when_idle: false,
            pause_for_apps: Vec::new(),
            pause_for_fullscreen: false,
        }
    }
}

/// Wishes that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, got {got}")]
pub struct SettingsError {
    /// Which.
    pub what: &'static str,
    /// What would do.
    pub expected: &'static str,
    /// What was given.
    pub got: String,
}

impl SettingsError {
    /// Nothing when it `holds`, else what would.
    ///
    /// # Errors
    /// Itself.
    pub fn unless(
        holds: bool,
        what: &'static str,
        expected: &'static str,
        got: &dyn ToString,
    ) -> Result<(), SettingsError> {
        if holds { Ok(()) } else { Err(Self { what, expected, got: got.to_string() }) }
    }
}

impl Rules {
    /// Whether they make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), SettingsError> {
        let entries = self.schedule.len().max(self.pause_for_apps.len());
        SettingsError::unless(entries <= ENTRIES_MAX, "lists", "at most 64 entries", &entries)?;
        for app in &self.pause_for_apps {
            let chars = app.chars().count();
            SettingsError::unless(chars <= ENTRY_CHARS_MAX, "an entry", "at most 256 characters", &chars)?;
        }
        let duty = self.duty_percent;
        let is_duty = duty == 0 || (DUTY_PERCENT_MIN..=100).contains(&duty);
        SettingsError::unless(is_duty, "duty cycle", "0, or 5 to 100 percent", &duty)?;
        let are_hours = self.schedule.iter().all(Hours::is_sound);
        SettingsError::unless(are_hours, "schedule", "days 0–127, minutes of a day", &self.schedule.len())
    }
}

impl fmt::Display for Rules {
    /// For people: `50 % of the time, mon@22:00-07:30, not on battery`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = Vec::new();
        if self.duty_percent < 100 {
            said.push(format!("{} % of the time", self.duty_percent));
        }
        said.extend(self.schedule.iter().map(Hours::to_string));
        let wishes = [
            (!self.on_battery, "not on battery"),
            (!self.on_metered, "not on a metered line"),
            (self.only_when_idle, "only while nobody is at the machine"),
            (self.pause_for_fullscreen, "not while a program fills the screen"),
        ];
        said.extend(wishes.iter().filter(|(holds, _)| *holds).map(|(_, words)| (*words).to_owned()));
        said.extend(self.pause_for_apps.iter().map(|app| format!("not while {app} runs")));
        f.write_str(if said.is_empty() { "at any time" } else { "" })?;
        f.write_str(&said.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Hours>().ok();
        let hours = |days, from_min, to_min| Some(Hours { days, from_min, to_min });
        assert_eq!(read("mon-fri@22:00-07:30"), hours(31, 1320, 450));
        assert_eq!(read("Fri-Mon, WED@0:00-24:00"), hours(16 + 32 + 64 + 1 + 4, 0, 1440));
        assert_eq!(read("sun@12:00-12:00"), hours(64, 720, 720));
        for wrong in [
            "",
            "mon",
            "mon@",
            "@1:00-2:00",
            "mon@1-2",
            "mon@24:00-1:00",
            "mon@1:60-2:00",
            "mon@1:00-24:01",
            "m@1:00-2:00",
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        let shown = read("mon-fri,sun@22:00-07:30").unwrap().to_string();
        assert_eq!(shown, "mon,tue,wed,thu,fri,sun@22:00-07:30");
        assert_eq!(read(&shown).unwrap().to_string(), shown);
    }

    #[test]
    fn rules_are_told_in_words() {
        assert_eq!(Rules::default().to_string(), "not on battery, not on a metered line");
        let lax = Rules { on_battery: true, on_metered: true, ..Rules::default() };
        assert_eq!(lax.to_string(), "at any time");
        let night = vec!["sun@22:00-07:30".parse().unwrap()];
        let strict = Rules { duty_percent: 50, schedule: night, pause_for_apps: vec!["blender".into()], ..lax };
        assert_eq!(strict.to_string(), "50 % of the time, sun@22:00-07:30, not while blender runs");
    }
}
