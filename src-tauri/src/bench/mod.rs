//! `kvasir bench`: speed as paired figures of one run, for people and for machines.

mod decode;

use std::error::Error;

pub use crate::kernel::bench::ExpertsBench;
pub use decode::{DecodeBench, DecodeOptions, decode};

/// Exact experts at real geometry, on every CPU path of this machine.
///
/// # Errors
/// A kernel that cannot be built.
pub fn experts() -> Result<ExpertsBench, Box<dyn Error + Send + Sync>> {
    Ok(crate::kernel::bench::bench_experts()?)
}
