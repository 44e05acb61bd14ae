//! `kvasir bench`: speed as paired figures of one run, for people and for machines.

mod decode;

pub use crate::kernel::bench::{ExpertsBench, bench_experts as experts};
pub use decode::{DecodeBench, DecodeOptions, decode};
