//! Courtesy: when a worker stands by because its machine belongs to somebody, and how gently it works otherwise.
//!
//! [`Rules`] are what the owner wishes, [`decide`] holds them against [`Facts`], and [`watch`](watch::watch) reads the
//! facts again and again. [`Duty`] spaces the computing. **Promise:** looking changes nothing, asks nobody for anything,
//! and what cannot be read holds nothing back.

mod decide;
mod duty;
mod facts;
pub mod screen;
mod watch;

use serde::{Deserialize, Serialize};

pub use decide::{FULLSCREEN, Facts, decide};
pub use duty::Duty;
pub use facts::Sources;
pub use watch::{LOOK_EVERY, watch};

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
        self.days < 128 && self.from_min < 24 * 60 && self.to_min <= 24 * 60
    }
}

/// What the owner of a machine wishes.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Programs that want the machine for themselves, by name.
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

/// Why a worker stands by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Outside the hours that its owner chose.
    Schedule,
    /// The machine runs on its battery.
    Battery,
    /// The network connection costs money by the byte.
    Metered,
    /// A program that wants the machine for itself is running, or one fills the screen.
    ExclusiveApp,
    /// Somebody is at the machine.
    UserActive,
    /// The duty cycle is zero.
    Duty,
}

/// What holds work back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Why.
    pub reason: Reason,
    /// Whose doing it is, such as a program's name; may be empty.
    pub detail: String,
    /// When it ends, where that is known, in seconds since 1970.
    pub until_unix_s: Option<u64>,
}
