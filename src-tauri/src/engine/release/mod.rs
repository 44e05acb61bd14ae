//! Newer releases of the program: what is known of them, for a window to show, and where they are asked for.
//!
//! Whoever has a shell asks and installs; what is announced, fetched and trusted is decided here. **Promises:** an older
//! version is never taken for a newer one; a package that the releases' key has not signed, as the very version that was
//! announced, is not handed out.

mod announced;
mod signature;
mod source;

use serde::Serialize;

use super::Problem;

pub use announced::{Platform, Release};
pub use signature::{ReleaseKey, SignatureError};
pub use source::{ReleaseError, Releases};

/// Where the newer release stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NewRelease {
    /// This build asks for none.
    #[default]
    None,
    /// None is known of; it can be asked for.
    NotKnown,
    /// It is being asked for.
    Asking,
    /// Somebody asked, and there is none.
    Newest,
    /// Somebody asked, and nobody can tell.
    Unknown {
        /// Why.
        problem: Problem,
    },
    /// It can be installed.
    Found {
        /// Its version.
        version: String,
    },
    /// It is being downloaded and installed.
    Fetching {
        /// Its version.
        version: String,
    },
    /// It could not be installed.
    Failed {
        /// Its version.
        version: String,
        /// Why.
        problem: Problem,
    },
}
