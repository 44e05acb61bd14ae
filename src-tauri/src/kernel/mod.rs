//! The expert function, on whatever hardware there is.

pub mod float;
pub mod numerics;
