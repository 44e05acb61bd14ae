//! The expert function in integers ("KV-INT 1"), written to be read: the specification of every kernel.
//!
//! An expert maps bytes to bytes: quantised hidden state → [`row_dot()`] with gate and up → [`swiglu()`] →
//! [`quantise_row`] → [`row_dot()`] with down → [`output()`] on the row's grid. No step rounds in floating point, every
//! intermediate has a proven width, and integers only add, so lane order, threads, batches and the split of experts
//! over workers cannot change a bit. Sums are i64 here, and what a kernel must hold in 32 bits is asserted.
//!
//! **Invariant:** rows are at most [`COLUMNS_MAX`](matrix::COLUMNS_MAX) elements; with 32-element block types the
//! last super-block may be short, its missing elements being zero.
//!
//! Not here: anything fast. `kernel::cpu` is tested against this module, byte for byte.

mod blocks;
pub mod expert;
pub mod matrix;
pub mod output;
pub mod quantise;
pub mod row_dot;
pub mod swiglu;

pub(crate) use blocks::growth_bits;
pub use expert::{WeighedError, expert};
pub use matrix::{ExactMatrix, MatrixError};
pub use output::{GateWeightError, OutOfRange, gate_weight, grid, output};
pub use quantise::{Poison, QuantisedBlock, QuantisedRow, quantise_row};
pub use row_dot::{Scaled, row_dot};
pub use swiglu::swiglu;

/// `floor(v / 2^r + 1/2)`: rounds half up; `r` = 0 is the identity.
pub(crate) fn round_shift(v: i64, r: u32) -> i64 {
    match r {
        0 => v,
        1..=62 => (v >> r) + ((v >> (r - 1)) & 1),
        _ => 0,
    }
}

/// `v`, which a 32-bit kernel must be able to hold.
///
/// # Panics
/// When it does not fit: the proofs of the numerics would be wrong.
fn fits_i32(v: i64) -> i64 {
    assert!(i32::try_from(v).is_ok(), "expected a value of 32 bits, got {v}");
    v
}
