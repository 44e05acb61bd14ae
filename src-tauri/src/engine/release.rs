//! What is known of a newer release of the program, for a window to show; whoever has a shell looks for it.

use serde::Serialize;

use super::Problem;

/// Where the newer release stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NewRelease {
    /// There is none, as far as is known.
    #[default]
    None,
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
