//! `kvasir bench`: speed as paired figures of one run, for people and for machines.

mod batch;
mod decode;

pub use crate::kernel::bench::{ExpertsBench, bench_experts as experts};
pub use batch::{BatchBench, BatchOptions, Phase, batches};
pub use decode::{DecodeBench, DecodeOptions, decode};
