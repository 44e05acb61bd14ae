//! What a worker calls itself in the handshake: `kvasir/1.2.3`.
//!
//! It is told for people, and for one decision: a hub that no longer serves old programs says so by name, so that their
//! owners learn what to do. Nobody is trusted for it.

use std::fmt;
use std::str::FromStr;

/// What this program calls itself.
pub const AGENT: &str = concat!("kvasir/", env!("CARGO_PKG_VERSION"));
/// The name before the version.
const PROGRAM: &str = "kvasir/";

/// A version of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u16; 3]);

/// A text that is no version.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a version such as 1.2.3, got {got:?}")]
pub struct VersionError {
    /// The text, cut to 64 characters.
    got: String,
}

impl Version {
    /// The version that an agent names; `None` for another program.
    #[must_use]
    pub fn of_agent(agent: &str) -> Option<Self> {
        // What follows a space or a plus is for people.
        let version = agent.strip_prefix(PROGRAM)?.split([' ', '+', '-']).next()?;
        version.parse().ok()
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || VersionError { got: text.chars().take(64).collect() };
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
        let mut numbers = [0; 3];
        let mut parts = text.split('.');
        for number in &mut numbers {
            let part = parts.next().filter(|part| is_number(part)).ok_or_else(fail)?;
            *number = part.parse().map_err(|_| fail())?;
        }
        if parts.next().is_some() { Err(fail()) } else { Ok(Self(numbers)) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers_and_other_programs_have_none() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("0.9.0") < version("0.10.0") && version("1.0.0") > version("0.65535.9"));
        assert_eq!(version("1.2.3").to_string(), "1.2.3");
        assert_eq!(Version::of_agent("kvasir/1.2.3"), Some(version("1.2.3")));
        assert_eq!(Version::of_agent("kvasir/1.2.3-rc1 (linux)"), Some(version("1.2.3")));
        assert!(Version::of_agent(AGENT).is_some());
        for other in ["test/1", "kvasir", "kvasir/", "kvasir/1.2", "Kvasir/1.2.3"] {
            assert_eq!(Version::of_agent(other), None, "{other}");
        }
        for wrong in ["", "1", "1.2", "1.2.3.4", "1..3", "+1.2.3", "1.2.65536", "a.b.c"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }
}
