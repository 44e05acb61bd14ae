//! The expert function on this machine's GPU, by the WGSL kernels in `shaders/`, for whoever holds experts.
//!
//! Before: experts as stored and requests of quantised rows. After: the bytes of `kernel::numerics`, from the memory
//! and the arithmetic of a Vulkan, Metal or DX12 adapter.

pub mod adapters;
pub mod bandwidth;
mod cache;
pub mod choice;
pub mod compose;
mod compute;
mod device;
mod error;
mod kernel;
mod layout;
pub mod listing;
pub mod memory;
pub mod params;
mod pipelines;
mod plan;
mod readiness;
mod report;
mod scratch;
mod selftest;
mod slots;
mod store;
pub mod subgroups;
pub mod surroundings;
mod thread;
mod tune;
mod vectors;

use std::collections::BTreeSet;
use std::path::PathBuf;

pub use error::GpuError;
pub use kernel::{Activity, GpuKernel};
pub use readiness::Variant;
pub use report::{AdapterReport, Measured, Report, Throughput, TypeResult, report};

/// Which adapter to use, and how much of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuOptions {
    /// Part of the adapter's name or identity; the best one there is when `None`.
    pub adapter: Option<String>,
    /// Identities of adapters that are not to be used.
    pub off: BTreeSet<String>,
    /// Also takes adapters that are programs on the CPU, for tests.
    pub allow_software: bool,
    /// Most bytes of its memory for experts.
    pub memory_bytes: Option<u64>,
    /// Directory for tuning results; tuned anew at every start when `None`.
    pub cache: Option<PathBuf>,
    /// Shaders test every index: slower, for tests.
    pub checked: bool,
    /// This program, which looks at drivers first in a process of its own: one that crashes there takes nothing with it.
    pub looker: Option<PathBuf>,
}

#[cfg(test)]
mod tests;
