//! Courtesy: when a worker stands by because its machine belongs to somebody.
//!
//! [`Rules`] are what the owner wishes, in the form that settings keep.

use serde::{Deserialize, Serialize};

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
