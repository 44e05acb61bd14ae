//! `kvasir bench`: speed as paired figures of one run, for people and for machines.

mod batch;
mod decode;
mod dispatch;
mod far;
mod ledger;
mod speculate;
mod splice;
mod streams;

#[cfg(feature = "gpu")]
pub use crate::kernel::bench::measure_gpu as experts_on_gpu;
pub use crate::kernel::bench::{
    BenchOptions, DenseBench, DenseOptions, ExpertsBench, measure_cpu as experts_on_cpu, measure_dense as dense_on_cpu,
};
pub use batch::{BatchBench, BatchOptions, Phase, batches};
pub use decode::{DecodeBench, DecodeOptions, decode};
pub use dispatch::{Cell as DispatchCell, DispatchBench, DispatchBenchError, DispatchOptions, dispatch};
pub use far::{Far, Outside};
pub use ledger::{LedgerBench, LedgerBenchError, LedgerOptions, ledger};
pub use speculate::{SpeculateBench, SpeculateOptions, speculate};
pub use splice::{IdleBench, SpliceBench, SpliceBenchError, SpliceOptions, Way as SpliceWay, splice};
pub use streams::{Size, StreamsBench, StreamsBenchError, StreamsOptions, streams};
