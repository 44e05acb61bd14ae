//! The expert function, on whatever hardware there is.
//!
//! Before: a worker or the local dispatch holds quantised rows and the ids of the experts they need. After: per row
//! the exact sum of its weighted expert outputs, the same integers on every kernel. [`numerics`] is the definition,
//! [`cpu`] the fast kernels, [`experts`] the words in which both ends ask for it, [`float`] the plain f32 path for
//! weights that have no exact form.

mod batch;
pub mod bench;
pub mod cpu;
mod crew;
pub mod experts;
pub mod float;
mod float_form;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod numerics;
pub mod quant;

pub use cpu::{CpuKernel, CpuPath, CpuPathError};
pub use crew::{Crew, NoThreads};
pub use experts::{Expert, ExpertCompute, ExpertSource, KernelError};
