//! Dense arithmetic of the backbone and of float-weight experts, with bits that depend on nothing but the numbers.
//!
//! **Invariant:** a result has the same bits for any number of rows beside it, any number of threads and any
//! instruction level, because every sum of floats has one order (16 lanes, then a fixed tree) and no operation is
//! fused, and because the dense matrices of a large checkpoint are met as integers. The wider levels are faster, never
//! different. Routed experts of exact types do not come here: their whole function is defined in integers.

mod accumulate;
mod bands;
mod dense;
mod elementwise;
mod exact;
mod ffn;
mod floats;
mod levels;
mod math;
mod product;
mod state;

pub use accumulate::{Factor, accumulate};
pub use dense::{Dense, Residency};
pub use elementwise::{Softmax, add_products, narrow, silu_each, silu_times, soften, times_sigmoid, times_silu, widen};
pub use ffn::{FloatExpert, ffn};
pub use math::{exp, sigmoid, silu, softmax, softplus};
pub use product::{dot, products, weighted_rows};
pub use state::{DeltaToken, delta_token};
