//! Who may use the API: keys that are kept as hashes, each with its limits, its route and its usage.
//!
//! Before: `kvasir keys` writes [`KeyFile`] in the backbone's state directory. After: every request is held to the file
//! as it is at that moment, so that a key works and ends without a restart.
//! **Promises:** a key is shown once, when it is made, and never stored; once there was a key, nobody is served without
//! one; a file that cannot be read, or that is gone, lets nobody in; the requests of a key never have more tokens than
//! it has. Why a plain hash: a key is 256 random bits, which no list of likely passwords holds.

mod file;
mod guard;
mod usage;

pub use file::{ApiKey, KeyError, KeyFile, NewKey, Route};
pub use guard::{Client, KeyGuard, Metered};
pub use usage::{Usage, UsageFile};

#[cfg(test)]
mod tests;
