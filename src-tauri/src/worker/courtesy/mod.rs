//! Courtesy: when a worker stands by because its machine belongs to somebody, and how gently it works otherwise.
//!
//! [`Rules`] are what the owner wishes, [`decide`] holds them against [`Facts`], and [`watch`](watch::watch) reads the
//! facts again and again. [`Duty`] spaces the computing. **Promise:** looking changes nothing, asks nobody for anything,
//! and what cannot be read holds nothing back.

mod decide;
#[cfg(all(target_os = "linux", feature = "desktop"))]
mod display;
mod duty;
mod facts;
mod watch;

use std::fmt;

use serde::Serialize;

pub use crate::types::{Hours, Rules};
pub use decide::{FULLSCREEN, Facts, decide};
pub use duty::Duty;
pub use facts::{Sources, sees_fullscreen};
pub use watch::{LOOK_EVERY, watch};

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

/// What a look at the machine came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Welcome {
    /// Nobody has looked yet: nothing begins before.
    #[default]
    Unknown,
    /// Work is welcome.
    Yes,
    /// Something holds it back.
    No(Hold),
}

impl Welcome {
    /// What holds work back, if something is known to.
    #[must_use]
    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Self::No(hold) => Some(hold),
            Self::Unknown | Self::Yes => None,
        }
    }
}

impl From<Option<Hold>> for Welcome {
    fn from(hold: Option<Hold>) -> Self {
        hold.map_or(Self::Yes, Self::No)
    }
}

/// What holds work back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hold {
    /// Why.
    pub reason: Reason,
    /// Whose doing it is, such as a program's name; may be empty.
    pub detail: String,
    /// When it ends, where that is known, in seconds since 1970.
    pub until_unix_s: Option<u64>,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::Schedule => f.write_str("outside the hours of its schedule"),
            Reason::Battery => f.write_str("the machine runs on its battery"),
            Reason::Metered => f.write_str("the connection is metered"),
            Reason::ExclusiveApp if self.detail == FULLSCREEN => f.write_str("a program fills the screen"),
            Reason::ExclusiveApp => write!(f, "{} runs", self.detail),
            Reason::UserActive => f.write_str("somebody is at the machine"),
            Reason::Duty => f.write_str("its duty cycle is 0 %"),
        }
    }
}
